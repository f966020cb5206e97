"""The GPUs that a rank's program and its MPI library see. Pure.

PyTorch's usual advice, CUDA_VISIBLE_DEVICES = local rank, also hides the peers' GPUs from the MPI
library. Whether that costs CUDA IPC depends on the library: MVAPICH2 and Open MPI's smcuda compare
device ordinals, MPICH needs the peer's GPU in its list, UCX needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hvd_ext.errors import UsageError
from hvd_launch.backends.base import MpiLibrary

STRATEGIES = {
    "pin": "the rank sees only its own GPU",
    "rotate": "it sees all GPUs, its own first",
    "all": "it sees all GPUs in their order, and the program selects its own",
    "split": "the program sees only its own GPU, MVAPICH2 sees all (MV2_VISIBLE_DEVICES)",
}
LIST = "CUDA_VISIBLE_DEVICES"
LIBRARY_LIST = "MV2_VISIBLE_DEVICES"
# Read by set_device_shim/sitecustomize.py.
OWN = "HVD_LAUNCH_OWN_DEVICE"


@dataclass(frozen=True)
class View:
    """GPUs that a rank sees.

    Attributes:
        strategy: a key of STRATEGIES; "none" if there is no choice.
        variables: variables to set in the rank.
        own: ordinal of the rank's own GPU among those that its program sees; None without one.
        notes: notes for the user, one line each.
    """

    strategy: str
    variables: Mapping[str, str] = field(default_factory=dict)
    own: int | None = 0
    notes: tuple[str, ...] = ()


def pool(environ: Mapping[str, str], gpus: int) -> tuple[str, ...]:
    """Return the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES.

    Args:
        environ: environment, in which the scheduler or the user may have restricted them.
        gpus: number of GPUs of the machine.

    Raises:
        UsageError: the list names a GPU twice.
    """
    if LIST not in environ:
        return tuple(map(str, range(gpus)))
    devices = tuple(word.strip() for word in environ[LIST].split(",") if word.strip())
    # CUDA ignores all entries after an invalid ordinal.
    devices = devices[: devices.index("-1")] if "-1" in devices else devices
    if len(set(devices)) != len(devices):
        raise UsageError(f"{LIST}={environ[LIST]!r} names a GPU twice: list each once")
    return devices


def choose(
    library: MpiLibrary | None,
    devices: Sequence[str],
    environ: Mapping[str, str],
    library_knows_list: bool,
) -> tuple[str, str]:
    """Return the strategy that suits an MPI library, and why.

    Args:
        library: the MPI library, if it is known.
        devices: result of `pool`.
        environ: the rank's environment.
        library_knows_list: whether the MPI library reads MV2_VISIBLE_DEVICES.
    """
    if any(device.startswith("MIG") for device in devices):
        return "pin", "a CUDA program sees the first MIG device of its list, no other"
    if library_knows_list:
        return "split", f"the MPI library reads {LIBRARY_LIST}"
    if library is None:
        return "all", "true ordinals are right for every MPI library"
    return library.visibility(devices, environ)


def view(
    strategy: str, devices: Sequence[str], local_rank: int, library: MpiLibrary | None = None
) -> View:
    """Return the GPUs that a rank sees under a strategy.

    Args:
        strategy: a key of STRATEGIES.
        devices: result of `pool`.
        local_rank: local rank of this rank.
        library: see `choose`.
    """
    if len(devices) <= 1:
        reason = "no GPU" if not devices else f"GPU {devices[0]} alone, as the scheduler gave it"
        note = f"the rank has {reason}: its list is unchanged"
        return View("none", own=0 if devices else None, notes=(note,))
    own = local_rank % len(devices)
    notes = []
    if local_rank >= len(devices):
        notes.append(
            f"local rank {local_rank} shares GPU {devices[own]}: there are only {len(devices)} GPUs"
        )
    every = ",".join(devices)
    if strategy == "all":
        notes.append(
            "the program has to call torch.cuda.set_device(hvd.local_rank()) before it uses "
            "CUDA: until then device 0 is its device, and holds 0.5 to 1 GB for it"
        )
        return View("all", {LIST: every}, own, tuple(notes))
    if strategy == "rotate":
        if library is not None and library.rotation_note:
            notes.append(library.rotation_note)
        turned = (*devices[own:], *devices[:own])
        return View("rotate", {LIST: ",".join(turned)}, 0, tuple(notes))
    variables = {LIST: devices[own]}
    if strategy == "split":
        variables[LIBRARY_LIST] = every
    return View(strategy, variables, 0, tuple(notes))


def split_warning(library: str) -> str:
    """Return a warning if the library does not read MV2_VISIBLE_DEVICES."""
    return (
        f"{library} does not read {LIBRARY_LIST}: split equals pin here, and CUDA IPC "
        "between ranks may be off; use --visibility all, or leave the choice to auto"
    )
