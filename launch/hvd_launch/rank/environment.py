"""The one reader of the rank variables that launchers set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvd_launch.backends import slurm
from hvd_launch.backends.libraries import LIBRARIES

# Rank and local rank of launchers for any MPI library. srun's come last, because a batch script has
# them, too, and passes them to an mpirun's ranks.
_LAUNCHERS = (
    ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK"),
    # Not run: jsrun, Cray's PALS, Flux.
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK"),
    ("PALS_RANKID", "PALS_LOCAL_RANKID"),
    ("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"),
    ("SLURM_PROCID", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class RankInfo:
    """A process's rank in its job.

    Attributes:
        rank: number among all ranks.
        local_rank: number among those of its node.
        family: family of the MPI library, if the variables show it; else "".
        local_size: the number of its node's ranks, if the variables show it.
    """

    rank: int
    local_rank: int
    family: str
    local_size: int | None = None


def rank_info(environ: Mapping[str, str]) -> RankInfo | None:
    """Return this process's rank; None if no launcher started it."""
    for library in LIBRARIES.values():
        if library.rank_variables is not None and library.started_here(environ):
            rank, local_rank = library.rank_variables
            count = environ.get(library.local_size_variable, "")
            local_size = int(count) if count.isdecimal() else None
            return RankInfo(
                int(environ[rank]), int(environ[local_rank]), library.family, local_size
            )
    for rank, local_rank in _LAUNCHERS:
        if environ.get(rank, "").isdecimal() and environ.get(local_rank, "").isdecimal():
            local_size = slurm.step_slots(environ) if rank == "SLURM_PROCID" else None
            return RankInfo(int(environ[rank]), int(environ[local_rank]), "", local_size)
    return None
