"""Intel MPI, started by its Hydra: command line and variables. Pure."""

from __future__ import annotations

import re

from hvd_launch.backends import ucx
from hvd_launch.job import Job, even_slots
from hvd_launch.settings import Setting, wants_ipc

_REFERENCE = "Intel MPI Library developer reference for Linux, {}"
_GPU = _REFERENCE.format("GPU support")


def recognise(text: str) -> tuple[int, ...] | None:
    """The version, if this is what Intel's `mpirun --version` prints."""
    match = re.match(
        r"Intel\(R\) MPI Library for Linux\*? OS, Version (\d+)(?:\.(\d+))?", text.strip()
    )
    return tuple(int(part) for part in match.groups() if part) if match else None


def arguments(job: Job) -> list[str]:
    """What to pass to mpirun, whose reference lets -hosts name hosts without their slots.

    Raises:
        UsageError: hosts that take different numbers of ranks.
    """
    where: list[str] = []
    if job.hosts:
        slots = even_slots(job, "Intel's mpirun")
        where = ["-ppn", str(slots), "-hosts", ",".join(host.name for host in job.hosts)]
    return ["-np", str(job.size), *where, "-genvall", *job.command]


def always() -> tuple[Setting, ...]:
    """What a training job needs on any machine."""
    return (
        Setting(
            "I_MPI_PIN",
            "0",
            "1: each rank is bound to its share of the cores",
            "a rank of a training framework has threads of its own to spread",
            _REFERENCE.format("process pinning"),
        ),
    )


def devices(preset: str) -> tuple[Setting, ...]:
    """A preset for jobs on GPUs."""
    ipc = wants_ipc(preset)
    return (
        Setting(
            "I_MPI_OFFLOAD",
            "1",
            "0: no GPU buffers",
            "MPI calls take GPU buffers",
            _GPU,
        ),
        Setting(
            "I_MPI_OFFLOAD_MODE",
            "cuda",
            "auto",
            "NVIDIA GPUs: in the reference of 2021.14, not in that of 2021.9",
            _GPU,
        ),
        Setting(
            "I_MPI_OFFLOAD_IPC",
            "1" if ipc else "0",
            "not documented where we could read it",
            "GPUs of a node copy from each other's memory"
            if ipc
            else "GPUs of a node exchange through the host",
            "seen in sites' job scripts only; not run",
        ),
        *ucx.libfabric_cache(preset),
    )


def through_ucx() -> tuple[Setting, ...]:
    """Sends through UCX."""
    return (
        Setting(
            "I_MPI_OFI_PROVIDER",
            "mlx",
            "the best that libfabric finds",
            "libfabric sends through UCX, which this provider of Intel's stands for",
            f"{_REFERENCE.format('OFI-capable network fabrics control')}; not run",
        ),
    )
