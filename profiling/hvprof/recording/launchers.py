"""Programs that start the ranks of a job."""

from __future__ import annotations

from pathlib import Path

_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "srun")


def launcher_of(program: str) -> str:
    """The launcher that a word of a command names, "mpirun" for mpirun.openmpi; "" if it is none.

    Debian puts the library's name after it.
    """
    name = Path(program).name.partition(".")[0]
    return name if name in _LAUNCHERS else ""
