"""Settings of UCX and libfabric, for the libraries that send through them. Pure."""

from __future__ import annotations

from hvd_launch.settings import Setting, wants_ipc, wants_registration_cache

_UCX = "UCX's ucx_info -cf"


def gpu_settings(preset: str) -> tuple[Setting, ...]:
    """UCX's part of a preset: the transport between GPUs of a node, and the cache."""
    ipc = wants_ipc(preset)
    settings = [
        Setting(
            "UCX_TLS",
            "all" if ipc else "^cuda_ipc",
            "all",
            "UCX may copy between the GPUs of a node by CUDA IPC"
            if ipc
            else "UCX does not use CUDA IPC: GPUs of a node exchange through the host",
            _UCX,
        ),
        *registration_cache(preset),
    ]
    if ipc:
        settings.append(
            Setting(
                "UCX_CUDA_IPC_CACHE",
                "y",
                "y",
                "opens each IPC handle once: Horovod's fusion buffer keeps its address",
                _UCX,
            )
        )
    return tuple(settings)


def registration_cache(preset: str) -> tuple[Setting, ...]:
    on = wants_registration_cache(preset)
    return (
        Setting(
            "UCX_RCACHE_ENABLE",
            "try" if on else "n",
            "try",
            "keeps memory registered with the network card between messages"
            if on
            else "registers memory again for each large message",
            _UCX,
        ),
    )


def libfabric_cache(preset: str) -> tuple[Setting, ...]:
    """Return the setting of libfabric's registration cache, which MPICH and Intel MPI also use."""
    on = wants_registration_cache(preset)
    return (
        Setting(
            "FI_MR_CACHE_MONITOR",
            "memhooks" if on else "disabled",
            "memhooks",
            "libfabric keeps memory registered, and detects its release by hooks"
            if on
            else "libfabric registers memory again for each large message",
            "libfabric's fi_mr(3)",
        ),
    )
