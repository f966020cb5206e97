"""MPICH, and MVAPICH 3 and 4, started by Hydra: command line and variables. Pure."""

from __future__ import annotations

import re

from hvd_launch.backends import ucx
from hvd_launch.job import Job
from hvd_launch.settings import Setting, wants_ipc

# CVARs are of type int; a message is never longer.
_NEVER = "2147483647"
_PREFIX = {"mpich": "MPIR_CVAR_", "mvapich": "MVP_"}
_SOURCE = {
    "mpich": "MPICH's CVAR descriptions (MPI_T), src/mpid/ch4/shm/ipc/gpu/gpu_post.c",
    "mvapich": "MPICH's CVARs under MVAPICH's prefix MVP_; not run",
}


def recognise(text: str) -> tuple[int, ...] | None:
    """Hydra's version, if this is what its `mpirun --version` prints."""
    first, _, rest = text.strip().partition("\n")
    match = re.search(r"^\s*Version:\s+(\d+)\.(\d+)(?:\.(\d+))?", rest, re.MULTILINE)
    if first.strip() != "HYDRA build details:" or match is None:
        return None
    return tuple(int(part) for part in match.groups() if part)


def arguments(job: Job) -> list[str]:
    """What to pass to mpirun; it knows no slots to exceed, and passes every variable on."""
    hosts = ",".join(f"{host.name}:{host.slots}" for host in job.hosts)
    where = ["-hosts", hosts] if hosts else []
    return ["-np", str(job.size), *where, "-bind-to", "none", "-genvall", *job.command]


def devices(name: str, preset: str) -> tuple[Setting, ...]:
    """A preset for jobs on GPUs.

    Args:
        name: "mpich" or "mvapich".
        preset: one of PRESETS.
    """
    prefix, source, ipc = _PREFIX[name], _SOURCE[name], wants_ipc(preset)
    threshold = "1048576" if name == "mpich" else "16384"
    settings = [
        Setting(
            f"{prefix}ENABLE_GPU",
            "1",
            "1 in a library built for GPUs",
            "the library asks of each buffer whether it lies on a GPU",
            source,
        ),
        Setting(
            f"{prefix}CH4_IPC_GPU_P2P_THRESHOLD",
            threshold if ipc else _NEVER,
            threshold,
            "messages from this many bytes on go from GPU to GPU by CUDA IPC"
            if ipc
            else "no message is long enough for CUDA IPC",
            source,
        ),
    ]
    return (*settings, *ucx.registration_cache(preset), *ucx.libfabric_cache(preset))


def through_ucx(name: str) -> tuple[Setting, ...]:
    """Sends through UCX."""
    return (
        Setting(
            f"{_PREFIX[name]}CH4_NETMOD",
            "ucx",
            "the first that was built in",
            "messages between nodes go through UCX",
            _SOURCE[name],
        ),
    )
