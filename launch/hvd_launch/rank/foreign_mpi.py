"""Detection of a rank whose MPI library the launcher cannot start: N jobs of 1 rank."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hvd_ext.system.process import descendants
from hvd_launch.rank.environment import RankInfo

_LIBRARY = re.compile(r"libmpi(ch)?\.so[.\d]*")
_OPEN_MPI, _PMIX = b"Open MPI v", b"PMIx_Init"
# A program that has loaded no MPI library by then is no longer checked.
_WITHIN_S = 60.0
_EVERY_S = 0.2


@dataclass(frozen=True)
class Starter:
    """The program that started a rank, and the MPI libraries that it can start.

    Attributes:
        name: mpirun, or srun with its plugin.
        open_mpi: whether it starts Open MPI.
        mpich: whether it starts MPICH and its derivatives.
        pmix: whether it starts libraries that use PMIx.
    """

    name: str
    open_mpi: bool = False
    mpich: bool = False
    pmix: bool = False

    def starts(self, library: Path) -> bool:
        """Whether ranks that have loaded this library are one job."""
        content = library.read_bytes()
        if self.pmix and _PMIX in content:
            return True
        return self.open_mpi if _OPEN_MPI in content else self.mpich


def starter_of(here: RankInfo, environ: Mapping[str, str]) -> Starter | None:
    """Return the program that started this process; None if it may start any library."""
    if here.family:
        is_open = here.family == "openmpi"
        return Starter("mpirun", open_mpi=is_open, mpich=not is_open)
    if "SLURM_PROCID" not in environ:
        return None
    if "PMIX_NAMESPACE" in environ:
        return Starter("srun with PMIx", open_mpi=True, pmix=True)
    if "PMI_RANK" in environ or "PMI_FD" in environ:
        return Starter("srun with PMI", mpich=True)
    return Starter("srun without PMI")


def looking_for_foreign_mpi(
    starter: Starter | None, size: int, report: Callable[[str], None]
) -> Callable[[], None]:
    """Return a function to call repeatedly, which reports a foreign MPI library once.

    Args:
        starter: result of `starter_of`.
        size: number of processes that it started.
        report: takes the line.
    """
    begun_s, next_s = time.monotonic(), 0.0
    done = size < 2 or starter is None

    def look() -> None:
        nonlocal done, next_s
        now_s = time.monotonic()
        if done or starter is None or now_s < next_s:
            return
        next_s, done = now_s + _EVERY_S, now_s - begun_s > _WITHIN_S
        if (library := loaded_mpi()) is None:
            return
        done = True
        if not starter.starts(library):
            whose = "Open MPI" if _OPEN_MPI in library.read_bytes() else "not Open MPI"
            report(
                f"{starter.name} started {size} processes, and each is a job of 1 rank, if it"
                f" starts: the program's MPI is another one ({library} is {whose}); name it with"
                " --backend"
            )

    return look


def loaded_mpi() -> Path | None:
    """Return the MPI library that a child process has loaded."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                words = line.split(maxsplit=5)
                if len(words) == 6 and _LIBRARY.fullmatch(Path(words[5]).name):
                    return Path(words[5])
    return None
