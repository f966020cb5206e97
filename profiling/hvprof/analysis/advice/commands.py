"""Commands to run next: the recorded one with a changed setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hvprof.model import Recording


def setting_of(library: str) -> tuple[str, str]:
    """The variable that chooses an MPI library's allreduce, and a value to try."""
    table = "HVD_EXT_TABLE, once hvd_ext has measured this cluster"
    if "MVAPICH2" in library:
        return (
            "MV2_INTER_ALLREDUCE_TUNING (2: reduce-scatter and allgather); with GPUs MV2_CUDA_IPC "
            f"and device visibility; or {table}",
            "MV2_INTER_ALLREDUCE_TUNING=2",
        )
    if "MPICH" in library:
        return (
            f"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM; or {table}",
            "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=ring",
        )
    return f"Open MPI's coll_tuned rules file, or {table}", ""


def launcher(recording: Recording) -> str:
    """A launcher of as many ranks as were recorded."""
    return f"horovodrun -np {recording.size}"


def with_variable(command: Sequence[str], variable: str, recording: Recording) -> list[str]:
    """The command with a variable that reaches all ranks."""
    open_mpi = "Open MPI" in recording.ranks[0].mpi_library
    if Path(command[0]).name in ("mpirun", "mpiexec") and open_mpi:
        return [command[0], "-x", variable, *command[1:]]
    return ["env", variable, *command]


def over_hvd_ext(command: list[str]) -> list[str]:
    """`python train.py` becomes `python -m hvd_ext train.py`."""
    for index, word in enumerate(command[:-1]):
        if Path(word).name.startswith("python"):
            return [*command[: index + 1], "-m", "hvd_ext", *command[index + 1 :]]
    return command
