"""Handles of collectives that are under way: numbers, as Horovod's are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hvd_ext.torch.standalone import ranks
from hvd_ext.torch.standalone.coordinator import JOIN, Request
from hvd_ext.torch.standalone.negotiation import Run
from hvd_ext.torch.standalone.refused import needs_horovod

_numbers = itertools.count()
_under_way: dict[int, Future[Any]] = {}
# What a recorder shows while this rank waits, by a handle.
_shown: dict[int, AbstractContextManager[None]] = {}


def ask(request: Request, run: Run) -> int:
    """Ask for a collective; returns its handle."""
    handle = next(_numbers)
    job = ranks.job()
    if job.named:
        key = job.named.submit(request.title)
        _shown[handle] = job.named.waiting(request.kind, request.name, key)
    _under_way[handle] = job.negotiator.submit(request, run)
    return handle


def poll(handle: int) -> bool:
    """Whether a collective has ended, so that synchronize() does not wait.

    Raises:
        ValueError: the handle is unknown, or was synchronized.
    """
    if handle not in _under_way:
        raise ValueError(f"handle {handle} is unknown, or synchronize() has cleared it")
    return _under_way[handle].done()


def synchronize(handle: int) -> Any:
    """Wait for a collective, and return its result; None for a handle that was synchronized.

    Raises:
        HorovodInternalError: it failed, on all ranks.
        StallError: ranks did not reach it in time; names them.
    """
    future = _under_way.pop(handle, None)
    with _shown.pop(handle, nullcontext()):
        return None if future is None else future.result()


def barrier(process_set: Any = ranks.global_process_set) -> None:
    """Wait until all ranks are here."""
    require_all_ranks(process_set)
    synchronize(ask(Request(next_name("barrier"), "barrier"), _nothing))


def join(device: int = -1) -> int:
    """Wait until all ranks have joined; meanwhile take part in their allreduces with zeros.

    Args:
        device: as Horovod takes it; has no effect.

    Returns:
        The rank that joined last.
    """
    del device
    last = int(synchronize(ask(Request(JOIN, JOIN), lambda own: own[0])))
    # A rank that had joined has counted fewer.
    ranks.job().unnamed.clear()
    if named := ranks.job().named:
        named.joined()
    return last


def _nothing(own: Sequence[Any]) -> None:
    del own


def next_name(kind: str) -> str:
    """A name for a collective to which the program gives none: ranks count alike."""
    counts = ranks.job().unnamed
    return f"{kind}.noname.{next(counts.setdefault(kind, itertools.count()))}"


def require_all_ranks(process_set: Any) -> None:
    """See that a collective is asked for all ranks.

    Raises:
        NotInstalledError: it is asked for a process set.
    """
    if process_set is not ranks.global_process_set:
        raise needs_horovod(f"process_set={process_set!r}")


def require_served(kind: str, tensors: Sequence[torch.Tensor]) -> None:
    """See that tensors can be exchanged.

    Raises:
        NotInstalledError: they are on a device.
        ValueError: they are sparse or not contiguous; as Horovod has it.
    """
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise needs_horovod(f"hvd.{kind} of a tensor on {tensor.device}")
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            raise ValueError(
                f"hvd.{kind} of a tensor of layout {tensor.layout} and strides "
                f"{tensor.stride() if tensor.layout == torch.strided else 'of no kind'}: give one "
                "that is dense and contiguous"
            )
