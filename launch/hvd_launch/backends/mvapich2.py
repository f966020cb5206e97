"""MVAPICH2 and MVAPICH2-GDR, started by mpirun_rsh or Hydra: command line, variables. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hvd_ext.errors import UsageError
from hvd_launch.job import Host, Job
from hvd_launch.settings import Setting, wants_ipc, wants_registration_cache

_GUIDE = {
    "mvapich2": "MVAPICH2 2.3.7 user guide, MVAPICH2 parameters",
    "mvapich2-gdr": "MVAPICH2-GDR 2.3.7 user guide",
}
# mpirun_rsh hands words to a remote shell: what that would read otherwise stays out.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./^-]+")


def recognise(text: str) -> tuple[str, tuple[int, ...]] | None:
    """Name and version, from what `mpiname -a` or MPI_Get_library_version says."""
    match = re.search(
        r"MVAPICH2(-GDR)?(?: Version\s*:?)?\s+v?(\d+)\.(\d+)(?:\.(\d+))?", text, re.IGNORECASE
    )
    if match is None:
        return None
    name = "mvapich2-gdr" if match.group(1) else "mvapich2"
    return name, tuple(int(part) for part in match.groups()[1:] if part)


def arguments(job: Job, environ: Mapping[str, str]) -> list[str]:
    """What to pass to mpirun_rsh: hosts one by one, variables as NAME=VALUE.

    Raises:
        UsageError: a word would not pass its remote shell as it is.
    """
    here = (Host("localhost", job.size),)
    places = [host.name for host in job.hosts or here for _ in range(host.slots)]
    # With more ranks than slots the list starts over.
    hosts = [places[rank % len(places)] for rank in range(job.size)]
    variables = [f"{name}={environ[name]}" for name in job.exported]
    for word in (*variables, *job.command):
        if not _PLAIN.fullmatch(word):
            raise UsageError(
                f"mpirun_rsh hands {word!r} to a remote shell, which would not leave it as it "
                "is: use --launcher hydra"
            )
    return ["-np", str(job.size), *hosts, *variables, *job.command]


def always(name: str) -> tuple[Setting, ...]:
    """What a training job needs on any machine."""
    return (
        Setting(
            "MV2_ENABLE_AFFINITY",
            "0",
            "1: each rank is bound to a core",
            "Horovod asks for MPI_THREAD_MULTIPLE, and its threads need cores of their own",
            _GUIDE[name],
        ),
    )


def devices(name: str, preset: str, environ: Mapping[str, str]) -> tuple[Setting, ...]:
    """A preset for jobs on GPUs.

    Args:
        name: "mvapich2" or "mvapich2-gdr".
        preset: one of PRESETS.
        environ: the job's environment; with LD_PRELOAD in it, MV2_SUPPORT_DL is left out.
    """
    guide, ipc, cache = _GUIDE[name], wants_ipc(preset), wants_registration_cache(preset)
    settings = [
        Setting(
            "MV2_USE_CUDA",
            "1",
            "0: no GPU buffers, and none of the other CUDA variables counts",
            "MPI calls take GPU buffers",
            guide,
        )
    ]
    if name == "mvapich2-gdr" and "LD_PRELOAD" not in environ:
        settings.append(
            Setting(
                "MV2_SUPPORT_DL",
                "1",
                "unset",
                "made for Horovod and other frameworks; not together with LD_PRELOAD",
                guide,
            )
        )
    settings += [
        Setting(
            "MV2_CUDA_IPC",
            "1" if ipc else "0",
            "1",
            "GPUs of a node copy from each other's memory"
            if ipc
            else "GPUs of a node exchange through the host",
            guide,
        ),
        Setting(
            "MV2_USE_LAZY_MEM_UNREGISTER",
            "1" if cache else "0",
            "1, but off where its malloc hooks fail",
            "the InfiniBand registration cache: memory stays registered between messages"
            if cache
            else "no registration cache: memory is registered for each large message anew",
            guide,
        ),
    ]
    if ipc:
        settings.append(
            Setting(
                "MV2_CUDA_ENABLE_IPC_CACHE",
                "1",
                "1",
                "opens each IPC handle once: Horovod's fusion buffer keeps its address",
                guide,
            )
        )
    return tuple(settings)
