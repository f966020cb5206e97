"""What a launcher tells a process of its place in the job: the one reader of these variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# rank, local_rank, local_size, and whose they are. srun's come last: a batch script has them
# too, and hands them to an mpirun's ranks.
_FAMILIES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "openmpi"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", "mvapich2"),
    ("PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpich"),
    ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", ""),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE", ""),
)


@dataclass(frozen=True)
class Place:
    """A process's place in its job.

    Attributes:
        rank: among all.
        local_rank: among those of its node.
        local_size: how many the node has; None if the launcher does not say.
        family: "openmpi", "mvapich2", "mpich" or "intelmpi", where the variables tell.
    """

    rank: int
    local_rank: int
    local_size: int | None
    family: str


def place(environ: Mapping[str, str]) -> Place | None:
    """This process's place; None if no launcher started it."""
    for rank, local_rank, local_size, family in _FAMILIES:
        if environ.get(rank, "").isdecimal() and environ.get(local_rank, "").isdecimal():
            size = environ.get(local_size, "")
            return Place(
                int(environ[rank]),
                int(environ[local_rank]),
                int(size) if size.isdecimal() else None,
                "intelmpi" if family == "mpich" and "I_MPI_ROOT" in environ else family,
            )
    return None
