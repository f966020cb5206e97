"""The MPI libraries that hvd-launch knows: how each is recognised, started and set. Pure.

Everything here builds argument vectors: nothing ever passes through a shell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hvd_ext.errors import HvdExtError, UsageError
from hvd_launch.backends import intelmpi as intel
from hvd_launch.backends import mpich as hydra
from hvd_launch.backends import mvapich2, openmpi, slurm
from hvd_launch.job import Job
from hvd_launch.settings import Setting


@dataclass(frozen=True)
class Library:
    """An MPI library.

    Attributes:
        title: as a person calls it.
        version: assumed where the library is named and not found on this machine.
        launchers: the programs that start its ranks, the usual one first.
    """

    title: str
    version: tuple[int, ...]
    launchers: tuple[str, ...]


BACKENDS = {
    "openmpi4": Library("Open MPI", (4, 1), ("mpirun", "srun")),
    "openmpi5": Library("Open MPI", (5, 0), ("mpirun", "srun")),
    "mpich": Library("MPICH", (5, 0), ("hydra", "srun")),
    "mvapich": Library("MVAPICH", (4, 0), ("hydra", "srun")),
    "mvapich2": Library("MVAPICH2", (2, 3), ("mpirun_rsh", "hydra", "srun")),
    "mvapich2-gdr": Library("MVAPICH2-GDR", (2, 3), ("mpirun_rsh", "hydra", "srun")),
    "intelmpi": Library("Intel MPI", (2021, 11), ("hydra", "srun")),
}
LAUNCHERS = ("mpirun", "hydra", "mpirun_rsh", "srun")
PROGRAMS = {"mpirun": "mpirun", "hydra": "mpirun", "mpirun_rsh": "mpirun_rsh", "srun": "srun"}


@dataclass(frozen=True)
class Backend:
    """An MPI library and what starts its ranks.

    Attributes:
        name: a key of BACKENDS.
        version: such as (4, 1, 8).
        launcher: one of LAUNCHERS.
        program: the launcher's path, or its name alone where it was not found.
        plugin: what `srun --mpi=` uses; for srun only.
    """

    name: str
    version: tuple[int, ...]
    launcher: str
    program: str
    plugin: str = ""

    @property
    def title(self) -> str:
        """Library, version and launcher in words."""
        version = ".".join(map(str, self.version))
        return f"{BACKENDS[self.name].title} {version}, started by {self.program}"


@dataclass(frozen=True)
class Launch:
    """A command that is ready to be run.

    Attributes:
        argv: the launcher and its arguments.
        environ: the launcher's whole environment.
    """

    argv: tuple[str, ...]
    environ: dict[str, str]


def recognise(version_text: str) -> tuple[str, tuple[int, ...]]:
    """Name and version of the library whose `mpirun --version` printed this.

    Hydra does not say whose it is: its own version comes back, as MPICH's.

    Raises:
        HvdExtError: it is none that hvd-launch knows.
    """
    found = openmpi.recognise(version_text)
    if found:
        return found
    if version := intel.recognise(version_text):
        return "intelmpi", version
    if version := hydra.recognise(version_text):
        return "mpich", version
    first = version_text.strip().partition("\n")[0].strip()
    raise HvdExtError(
        f"mpirun --version printed {first!r}: hvd-launch knows Open MPI from 4.0 on, MPICH, "
        "MVAPICH, MVAPICH2 and Intel MPI; name yours with --backend"
    )


def recognise_library(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Name and version from MPI_Get_library_version, `mpiname -a` or `mpichversion`."""
    found = mvapich2.recognise(text)
    if found:
        return found
    for name, pattern in (
        ("mvapich", r"MVAPICH(?:-Plus)?(?: Version)?\s*:?\s*v?([34])\.(\d+)(?:\.(\d+))?"),
        ("intelmpi", r"Intel\(R\) MPI Library (\d{4})(?:\.(\d+))?"),
        ("openmpi", r"Open MPI v(\d+)\.(\d+)\.(\d+)"),
        ("mpich", r"MPICH Version:\s*(\d+)\.(\d+)(?:\.(\d+))?"),
    ):
        match = re.search(pattern, text)
        if match:
            version = tuple(int(part) for part in match.groups() if part)
            if name == "openmpi":
                name = "openmpi4" if version[0] < 5 else "openmpi5"
            return name, version
    return None


def always(name: str) -> tuple[Setting, ...]:
    """Settings for any training job."""
    if name in ("mvapich2", "mvapich2-gdr"):
        return mvapich2.always(name)
    return intel.always() if name == "intelmpi" else ()


def devices(name: str, preset: str, environ: Mapping[str, str]) -> tuple[Setting, ...]:
    """Settings of a preset for a job on GPUs.

    Args:
        name: a key of BACKENDS.
        preset: a key of settings.PRESETS.
        environ: the job's environment, which some settings depend on.
    """
    if name in ("openmpi4", "openmpi5"):
        return openmpi.devices(preset)
    if name in ("mpich", "mvapich"):
        return hydra.devices(name, preset)
    return intel.devices(preset) if name == "intelmpi" else mvapich2.devices(name, preset, environ)


def through_ucx(name: str) -> tuple[Setting, ...]:
    """Settings that send through UCX.

    Raises:
        UsageError: the library cannot.
    """
    if name in ("openmpi4", "openmpi5"):
        return openmpi.through_ucx()
    if name in ("mpich", "mvapich"):
        return hydra.through_ucx(name)
    if name == "intelmpi":
        return intel.through_ucx()
    raise UsageError(f"{BACKENDS[name].title} cannot be told to use UCX: leave out --ucx")


def plan(backend: Backend, job: Job, environ: Mapping[str, str]) -> Launch:
    """The command that starts a job.

    Args:
        backend: the library, and what starts its ranks.
        job: what is to be started; its `exported` are names in `environ`.
        environ: the environment that the ranks are to have.

    Raises:
        UsageError: the launcher cannot do what the job asks for.
    """
    if ":" in job.command:
        raise UsageError(
            "':' as an argument of its own ends a program to every mpirun: leave it out"
        )
    if backend.launcher == "srun":
        arguments = slurm.arguments(job, backend.plugin)
    elif backend.launcher == "mpirun_rsh":
        arguments = mvapich2.arguments(job, environ)
    elif backend.launcher == "mpirun":
        arguments = openmpi.arguments(job)
    elif backend.name == "intelmpi":
        arguments = intel.arguments(job)
    else:
        arguments = hydra.arguments(job)
    return Launch((backend.program, *arguments), dict(environ))
