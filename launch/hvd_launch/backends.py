"""From an MPI library and a job to the command that starts it. Pure.

A backend is recognised by what its `mpirun --version` prints, and each builds an
argument vector: nothing here ever passes through a shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hvd_ext.errors import HvdExtError
from hvd_launch.job import Job


@dataclass(frozen=True)
class Backend:
    """An MPI library's launcher.

    Attributes:
        name: "openmpi" or "mpich" (MPICH's Hydra, and libraries that ship it).
        version: such as (4, 1, 8).
    """

    name: str
    version: tuple[int, ...]

    def arguments(self, job: Job) -> list[str]:
        """What to pass to this backend's mpirun."""
        return _ARGUMENTS[self.name](job)


def recognise(version_text: str) -> Backend:
    """The backend whose `mpirun --version` printed this.

    Raises:
        HvdExtError: it is none that hvd-launch knows.
    """
    first, _, rest = version_text.strip().partition("\n")
    openmpi = re.fullmatch(r"\S+ \((?:Open MPI|OpenRTE)\) (\d+)\.(\d+)\.(\d+)\S*", first.strip())
    if openmpi and int(openmpi.group(1)) >= 4:
        return Backend("openmpi", tuple(map(int, openmpi.groups())))
    hydra = re.search(r"^\s*Version:\s+(\d+)\.(\d+)(?:\.(\d+))?", rest, re.MULTILINE)
    if first.strip() == "HYDRA build details:" and hydra:
        return Backend("mpich", tuple(int(part) for part in hydra.groups() if part))
    raise HvdExtError(
        f"mpirun --version printed {first!r}: hvd-launch knows Open MPI from 4.0 on and MPICH"
    )


def _openmpi(job: Job) -> list[str]:
    """Open MPI 4 (ORTE) and 5 (PRRTE); the latter takes no single-dash long options."""
    arguments = ["--allow-run-as-root"] if job.as_root else []
    arguments += ["-np", str(job.size)]
    if job.hosts:
        arguments += ["--host", _host_list(job)]
    if job.oversubscribed:
        arguments += ["--oversubscribe"]
    # A rank of a training framework has threads, which a binding to one core would stack.
    arguments += ["--bind-to", "none", "--map-by", "slot"]
    for name in job.exported:
        arguments += ["-x", name]
    return [*arguments, *job.command]


def _mpich(job: Job) -> list[str]:
    """MPICH's Hydra: it has no notion of slots to exceed, and passes every variable on."""
    hosts = ["-hosts", _host_list(job)] if job.hosts else []
    return ["-np", str(job.size), *hosts, "-bind-to", "none", "-genvall", *job.command]


def _host_list(job: Job) -> str:
    return ",".join(f"{host.name}:{host.slots}" for host in job.hosts)


_ARGUMENTS: dict[str, Callable[[Job], list[str]]] = {"openmpi": _openmpi, "mpich": _mpich}
