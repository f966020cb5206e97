"""Commands to run next: the recorded one with a changed setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hvd_ext.system.mpi_libraries import MpiFacts, recognise
from hvprof.model import Recording
from hvprof.recording.launchers import launcher_of


def library_of(recording: Recording) -> MpiFacts | None:
    """Return the MPI library that was recorded; None for an unknown one."""
    # MVAPICH2 and MPICH write tabs and lines, which `printable` has replaced.
    return recognise(recording.ranks[0].mpi_library.replace("\N{REPLACEMENT CHARACTER}", " "))


def with_variables(
    command: Sequence[str], variables: Sequence[str], library: MpiFacts | None
) -> list[str]:
    """Return the command with variables that reach all ranks."""
    word = library.passes_by if library else ""
    if word and launcher_of(command[0]) in ("mpirun", "mpiexec"):
        passed = [part for variable in variables for part in (word, variable)]
        return [command[0], *passed, *command[1:]]
    return ["env", *variables, *command]


def over_hvd_ext(command: list[str]) -> list[str]:
    """Change `python train.py` to `python -m hvd_ext train.py`."""
    for index, word in enumerate(command[:-1]):
        if Path(word).name.startswith("python"):
            return [*command[: index + 1], "-m", "hvd_ext", *command[index + 1 :]]
    return command
