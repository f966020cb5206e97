"""The MPI libraries that hvd-launch supports, and the commands that start their ranks. Pure."""

from __future__ import annotations

import importlib
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.system import mpi_libraries
from hvd_ext.system.mpi_libraries import MpiFacts, Version
from hvd_launch.backends import slurm
from hvd_launch.backends.base import MpiLibrary
from hvd_launch.job import EXPORTED, KEPT_BACK, Job


def _library(facts: MpiFacts) -> MpiLibrary:
    """Make the library of the class in its file."""
    module = importlib.import_module(f"hvd_launch.backends.{facts.backend}")
    classes = (one for one in vars(module).values() if isinstance(one, type))
    return next(
        one()
        for one in classes
        if issubclass(one, MpiLibrary) and one.__dict__.get("name") == facts.name
    )


# In the order of the facts: if two match the same words, the right one comes first.
LIBRARIES = {name: _library(facts) for name, facts in mpi_libraries.LIBRARIES.items()}
TITLES = tuple(dict.fromkeys(library.title for library in LIBRARIES.values()))
_EXPORTED = re.compile(
    "|".join([EXPORTED, *(library.exported for library in LIBRARIES.values() if library.exported)])
)


@dataclass(frozen=True)
class Backend:
    """An MPI library and its launcher.

    Attributes:
        name: a key of LIBRARIES.
        version: such as (4, 1, 8).
        launcher: one of LAUNCHERS.
        program: the launcher's path, or only its name if it was not found.
        plugin: the value of `srun --mpi=`; only for srun.
    """

    name: str
    version: Version
    launcher: str
    program: str
    plugin: str = ""

    @property
    def library(self) -> MpiLibrary:
        return LIBRARIES[self.name]

    @property
    def title(self) -> str:
        """Describe library, version and launcher."""
        version = ".".join(map(str, self.version))
        return f"{self.library.title} {version}, started by {self.program}"


@dataclass(frozen=True)
class Launch:
    """A command that is ready to be run.

    Attributes:
        argv: the launcher and its arguments.
        environ: the launcher's whole environment.
        size: number of ranks.
        asks_to_end: MpiLibrary's value for this launcher. srun has none, because it forwards
            SIGTERM itself.
        dies_of: a signal for the ranks that ends the launcher, because it does not forward it.
    """

    argv: tuple[str, ...]
    environ: dict[str, str]
    size: int
    asks_to_end: signal.Signals | None = None
    dies_of: signal.Signals | None = None


def untested_note(library: MpiLibrary) -> str:
    """Return a note on a library that this project's tests have never run, or ""."""
    if library.tested:
        return ""
    return (
        f"{library.title} has never been run by hvd_ext's tests; its settings are from its guides"
    )


def recognise_mpirun(text: str) -> tuple[MpiLibrary, Version]:
    """Return the library whose `mpirun --version` printed this, and its version.

    Hydra does not report its library: the result is Hydra's version, as MPICH's.

    Raises:
        HvdExtError: hvd-launch does not support it.
    """
    for library in LIBRARIES.values():
        if version := library.recognise_mpirun(text):
            return library, version
    first = text.strip().partition("\n")[0].strip()
    raise HvdExtError(
        f"mpirun --version printed {first!r}: hvd-launch knows {', '.join(TITLES)} "
        "(Open MPI from 4.0 on); name the library with --backend"
    )


def recognise(text: str) -> tuple[MpiLibrary, Version] | None:
    """Return library and version from MPI_Get_library_version, `mpiname -a` or `mpichversion`."""
    for library in LIBRARIES.values():
        if version := library.recognise(text):
            return library, version
    return None


def version_line(text: str) -> str:
    """Return library and version in one line, from the text of MPI_Get_library_version."""
    first = re.split(r"[,\n\0]", text.strip())[0]
    return " ".join(first.replace(":", " ").split())


def find(name: str) -> MpiLibrary | None:
    """Return the library of this name, or else the first one of this family."""
    families = (library for library in LIBRARIES.values() if library.family == name)
    return LIBRARIES.get(name) or next(families, None)


def exported_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the sorted names of the variables that ranks on other hosts need."""
    return tuple(
        sorted(n for n in environ if _EXPORTED.fullmatch(n) and not KEPT_BACK.fullmatch(n))
    )


def build_launch(backend: Backend, job: Job, environ: Mapping[str, str]) -> Launch:
    """Return the command that starts a job.

    Args:
        backend: the library and its launcher.
        job: the job to start; its `exported` are names in `environ`.
        environ: the environment of the ranks.

    Raises:
        UsageError: the launcher cannot start such a job.
    """
    if ":" in job.command:
        raise UsageError("a separate argument ':' ends a program to every mpirun: leave it out")
    if backend.launcher == "srun":
        arguments = slurm.arguments(job, backend.plugin)
    else:
        arguments = backend.library.arguments(backend.launcher, job, environ)
    launcher, asks_to_end = backend.library.asks_to_end or ("", None)
    return Launch(
        (backend.program, *arguments),
        dict(environ),
        job.size,
        asks_to_end if launcher == backend.launcher else None,
        signal.SIGUSR2 if backend.launcher == "hydra" else None,
    )
