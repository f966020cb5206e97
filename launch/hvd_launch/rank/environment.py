"""What a launcher tells a process of its place in the job: the one reader of these variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# rank, local_rank, and whose they are. srun's come last: a batch script has them too, and hands
# them to an mpirun's ranks.
_FAMILIES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "openmpi"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "mvapich2"),
    ("PMI_RANK", "MPI_LOCALRANKID", "mpich"),
    ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", ""),
    # Not run: jsrun, Cray's PALS, Flux.
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK", ""),
    ("PALS_RANKID", "PALS_LOCAL_RANKID", ""),
    ("FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", ""),
    ("SLURM_PROCID", "SLURM_LOCALID", ""),
)


@dataclass(frozen=True)
class Place:
    """A process's place in its job.

    Attributes:
        rank: among all.
        local_rank: among those of its node.
        family: "openmpi", "mvapich2", "mpich" or "intelmpi", where the variables tell.
    """

    rank: int
    local_rank: int
    family: str


def place(environ: Mapping[str, str]) -> Place | None:
    """This process's place; None if no launcher started it."""
    for rank, local_rank, family in _FAMILIES:
        if environ.get(rank, "").isdecimal() and environ.get(local_rank, "").isdecimal():
            return Place(
                int(environ[rank]),
                int(environ[local_rank]),
                "intelmpi" if family == "mpich" and "I_MPI_ROOT" in environ else family,
            )
    return None
