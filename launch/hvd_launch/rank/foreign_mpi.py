"""An MPI library in a rank that the launcher's library does not start: N jobs of 1 rank."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from hvd_ext.system.process import descendants

_LIBRARY = re.compile(r"libmpi(ch)?\.so[.\d]*")
_OPEN_MPI = b"Open MPI v"
# A program that has loaded none by then is not looked at any more.
_WITHIN_S = 60.0
_EVERY_S = 0.2


def looking_for_foreign_mpi(
    family: str, size: int, report: Callable[[str], None]
) -> Callable[[], None]:
    """A function to call again and again: it reports the program's MPI once, if it is foreign.

    MPICH's Hydra starts all that is made from MPICH, and Open MPI's launchers Open MPI alone.

    Args:
        family: of the launcher's MPI library.
        size: number of processes that it started.
        report: takes the line.
    """
    begun_s, next_s = time.monotonic(), 0.0
    done = size < 2

    def look() -> None:
        nonlocal done, next_s
        now_s = time.monotonic()
        if done or now_s < next_s:
            return
        next_s, done = now_s + _EVERY_S, now_s - begun_s > _WITHIN_S
        if (library := loaded_mpi()) is None:
            return
        done = True
        if (_OPEN_MPI in library.read_bytes()) != (family == "openmpi"):
            whose = "not Open MPI" if family == "openmpi" else "Open MPI"
            report(
                f"mpirun started {size} processes, and each is a job of 1 rank, if it starts:"
                f" the program's MPI is another one ({library} is {whose}); name it with --backend"
            )

    return look


def loaded_mpi() -> Path | None:
    """The MPI library that a process below this one has loaded."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                words = line.split(maxsplit=5)
                if len(words) == 6 and _LIBRARY.fullmatch(Path(words[5]).name):
                    return Path(words[5])
    return None
