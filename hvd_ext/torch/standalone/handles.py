"""Handles of unfinished collectives: numbers, like Horovod's."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec

import torch

from hvd_ext.torch.standalone import ranks
from hvd_ext.torch.standalone.coordinator import JOIN, Request
from hvd_ext.torch.standalone.negotiation import Run
from hvd_ext.torch.standalone.refused import needs_horovod

P = ParamSpec("P")
GiveBack = Callable[[Any], Any]
_numbers = itertools.count()
_under_way: dict[int, Future[Any]] = {}
_give_back: dict[int, GiveBack] = {}
# By handle, the wait that a recorder shows while this rank waits.
_shown: dict[int, AbstractContextManager[None]] = {}


def ask(request: Request, run: Run, give_back: GiveBack | None = None) -> int:
    """Request a collective; returns its handle.

    Args:
        request: the request, which all ranks make.
        run: communicates, on the negotiator's thread.
        give_back: converts its result to that of `synchronize`, on the thread that calls that.
    """
    handle = next(_numbers)
    if give_back is not None:
        _give_back[handle] = give_back
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
    give_back = _give_back.pop(handle, None)
    with _shown.pop(handle, nullcontext()):
        result = None if future is None else future.result()
    return result if give_back is None else give_back(result)


def waited_for(begin: Callable[P, int]) -> Callable[P, Any]:
    """The collective that `begin` begins, to be called for its result."""

    @functools.wraps(begin)
    def run(*arguments: P.args, **options: P.kwargs) -> Any:
        return synchronize(begin(*arguments, **options))

    return run


def barrier(process_set: Any = ranks.global_process_set) -> None:
    """Wait until all ranks are here."""
    require_all_ranks(process_set)
    synchronize(ask(Request(next_name("barrier"), "barrier"), lambda own: None))


def join(device: int = -1) -> int:
    """Wait until all ranks have joined; meanwhile take part in their allreduces with zeros.

    Args:
        device: Horovod's argument; has no effect.

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


def next_name(kind: str) -> str:
    """Make a name for a collective without one; all ranks count alike."""
    counts = ranks.job().unnamed
    return f"{kind}.noname.{next(counts.setdefault(kind, itertools.count()))}"


def require_all_ranks(process_set: Any) -> None:
    """Check that a collective is for all ranks.

    Raises:
        NotInstalledError: it is for a process set.
    """
    if process_set is not ranks.global_process_set:
        raise needs_horovod(f"process_set={process_set!r}")


def on_host(kind: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors in memory that MPI can read: for GPUs, copies in pinned memory.

    Raises:
        NotInstalledError: they are on a device other than CPU and CUDA.
        ValueError: they are sparse or not contiguous, as in Horovod.
    """
    for tensor in tensors:
        if tensor.device.type not in ("cpu", "cuda"):
            raise needs_horovod(f"hvd.{kind} of a tensor on {tensor.device}")
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            raise ValueError(
                f"hvd.{kind} of a tensor of layout {tensor.layout} and strides "
                f"{tensor.stride() if tensor.layout == torch.strided else 'of no kind'}: give one "
                "that is dense and contiguous"
            )
    return [_copy_of(tensor) if is_on_gpu(tensor) else tensor for tensor in tensors]


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Whether MPI may be unable to read a tensor."""
    return tensor.device.type == "cuda"


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    pinned = torch.cuda.is_available()
    held = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
    return held.copy_(tensor.detach())


def give_back_all(
    tensors: Sequence[torch.Tensor], *, grouped: bool, in_place: bool
) -> Callable[[list[torch.Tensor]], Any]:
    """Make a collective's result from results on the host: a tensor or a tuple."""

    def give_back(found: list[torch.Tensor]) -> Any:
        made = [
            given_back(result, tensor, in_place=in_place)
            for result, tensor in zip(found, tensors, strict=True)
        ]
        return tuple(made) if grouped else made[0]

    return give_back


def given_back(result: torch.Tensor, like: torch.Tensor, *, in_place: bool) -> torch.Tensor:
    """Return a result on the given tensor's device, or in that tensor."""
    if not is_on_gpu(like):
        return result
    if not in_place:
        return result.to(like.device)
    with torch.no_grad():
        return like.copy_(result)
