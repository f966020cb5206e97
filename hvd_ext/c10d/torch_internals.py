"""The private behavior of torch that this package needs: one function or class for each.

No other file of this package uses a private name of torch. When a release of torch changes one of
these, its test in tests/single/c10d/test_torch_internals.py fails, and this file is the one to fix.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C import _dynamo
from torch.multiprocessing.reductions import StorageWeakRef

# From torch 2.14 on a Backend can be written in Python; before that, a whole ProcessGroup.
_IS_BACKEND = torch.__version__ >= "2.14"
_Base: Any = c10d.Backend if _IS_BACKEND else dist.ProcessGroup
WorkBase: Any = c10d.Work
_eval_frame: Any = _dynamo.eval_frame
F = TypeVar("F", bound=Callable[..., Any])


def share_storage(tensor: torch.Tensor) -> int:
    """Move a tensor's storage to /dev/shm, with its views and views of views.

    A storage that is there already stays.

    Returns:
        The descriptor of the file, which is as long as the storage. It belongs to the storage and
        is closed with it.

    Raises:
        RuntimeError: /dev/shm is full, or is not there; the storage stays where it is.
    """
    try:
        descriptor: int = tensor.untyped_storage()._share_fd_cpu_()[0]
    except RuntimeError as error:
        # torch does not remove the file that it could not fill, and names it in the error.
        if named := re.search(r"</(torch_\w+)>", str(error)):
            Path("/dev/shm", named[1]).unlink(missing_ok=True)
        raise
    return descriptor


def storage_is_there(tensor: torch.Tensor) -> Callable[[], bool]:
    """Return a test whether the present memory of a tensor's storage is still mapped."""
    storage = StorageWeakRef(tensor.untyped_storage())
    return lambda: not storage.expired()


def store_of(group: dist.ProcessGroup) -> Any:
    """The store over which a process group was made; the same object each time."""
    return dist.distributed_c10d._world.pg_map[group][1]


def timeout_s_of(group: dist.ProcessGroup) -> float:
    """How long a process group waits on the CPU for its ranks; infinite if that is not known."""
    pair: Any = group
    try:
        backend = pair._get_backend(torch.device("cpu"))
    except RuntimeError:  # it serves only other devices
        return math.inf
    if isinstance(backend, GroupBase):
        return backend.timeout_s
    limit = getattr(getattr(backend, "options", None), "_timeout", None)
    return limit.total_seconds() if isinstance(limit, timedelta) else math.inf


def has_hook(model: torch.nn.parallel.DistributedDataParallel) -> bool:
    """Whether a DDP model has a communication hook."""
    return bool(model._comm_hooks)


def reduction_name(options: Any) -> str:
    """Return the name of the reduction in a collective's options, such as "SUM", also for None."""
    return "SUM" if options is None else str(options.reduceOp.op.name)


# Its kernels stay registered as long as it exists.
_KERNELS: list[torch.library.Library] = []


def run_before(name: str, wrapper: Callable[[Callable[[], Any], dict[str, Any]], Any]) -> None:
    """Pass every call of an operator of c10d through `wrapper`, also calls from C++.

    Tensors of `torch.inference_mode` bypass it, and so does a ProcessGroup in Python.

    Args:
        name: name of the operator, such as "allreduce_".
        wrapper: takes the call as a function, and the operator's arguments by name, and returns
            the effect of the function.
    """
    operator = getattr(torch.ops.c10d, name).default
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(*arguments: Any, **options: Any) -> Any:
        def run() -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                # A direct call skips the search for fake objects that a call of `operator` makes,
                # 12 us.
                return operator._op(*arguments, **options)

        return wrapper(run, {**dict(zip(names, arguments, strict=False)), **options})

    library = torch.library.Library("c10d", "IMPL")
    for key in ("AutogradCPU", "AutogradCUDA"):
        library.impl(name, kernel, key)
    _KERNELS.append(library)


def group_of(argument: Any) -> dist.ProcessGroup:
    """Return the process group that an operator of c10d got as an argument."""
    group: dist.ProcessGroup = dist.ProcessGroup.unbox(argument)
    return group


def work_in(result: Any) -> dist.Work | None:
    """Return the work in the result of an operator of c10d, if there is one."""
    last = result[-1] if isinstance(result, (list, tuple)) and result else result
    work: dist.Work | None = None
    if isinstance(last, torch.ScriptObject):
        work = dist.Work.unbox(last)
    return work


def gpu_time_s(work: dist.Work) -> float | None:
    """How long a GPU took for a work of NCCL's; None if it is not over, or was not timed."""
    timed: Any = work
    try:
        duration_s: float = timed._get_duration() / 1e3
    except RuntimeError:
        return None
    return duration_s


def has_failed(future: Any) -> bool:
    """Whether the future of a work has an error in place of its value."""
    try:
        future.value()
    except Exception:  # any error of the backend
        return True
    return False


def backward_pass() -> int:
    """Return the number of this thread's current backward pass, or -1 outside of one."""
    number: int = torch._C._current_graph_task_id()
    return number


def at_end_of_backward(do: Callable[[], None]) -> None:
    """Call `do` at the end of the current backward pass, after earlier functions.

    If such a function calls it, `do` runs after all of them.
    """
    torch.autograd.Variable._execution_engine.queue_callback(do)


def compares_collectives() -> bool:
    """Whether TORCH_DISTRIBUTED_DEBUG=DETAIL makes PyTorch wrap groups, to compare their ranks."""
    level = dist.get_debug_level()  # type: ignore[attr-defined]
    return bool(level == dist.DebugLevel.DETAIL)  # type: ignore[attr-defined]


def untraced(function: F) -> F:
    """Make torch.compile not trace a function.

    It would trace methods that C++ calls, such as those of a process group, and fail.
    `torch.compiler.disable` imports the compiler.
    """
    skip = _eval_frame._FrameAction.SKIP
    strategy = _eval_frame._FrameExecStrategy(skip, skip)  # includes the functions that it calls
    _eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return function


class GroupBase(_Base):
    """The part of a CPU backend that torch needs and that does not communicate."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, rank: int, size: int, backend: str, timeout_s: float = math.inf) -> None:
        """Note the rank and the group.

        Args:
            rank: number within the group.
            size: number of ranks of the group.
            backend: its name in `init_process_group`.
            timeout_s: how long to wait for ranks.
        """
        super().__init__(rank, size)
        self._backend, self._name = backend, backend
        self._begun = 0  # collectives
        self.timeout_s = timeout_s

    def getBackendName(self) -> str:
        return self._backend

    def _get_sequence_number_for_group(self) -> int:
        # TORCH_DISTRIBUTED_DEBUG=DETAIL compares it between ranks.
        return self._begun

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    if not _IS_BACKEND:
        # torch's own ProcessGroup asks its backends for these; this class has no backends.
        _device_types = (torch.device("cpu"),)

        @property
        def group_name(self) -> str:
            return self._name

        def _set_group_name(self, name: str) -> None:
            self._name = name

        def getGroupName(self) -> str:
            return self._name

        def setGroupName(self, name: str) -> None:
            self._name = name

        def _get_backend_name(self) -> str:
            return self._backend

        def _get_backend(self, device: torch.device) -> GroupBase:
            if torch.device(device).type != "cpu":
                # The class of the error that torch catches.
                raise RuntimeError(f"backend {self._backend} serves the CPU, not {device}")
            return self

        def _start_coalescing(self, device: torch.device) -> None:
            self.start_coalescing()

        def _end_coalescing(self, device: torch.device) -> Any:
            return self.end_coalescing()
