"""Collectives of torch.distributed, of every backend that is not in Python, for a recorder.

A kernel is registered in front of that of each operator of c10d, so calls of DDP's C++ pass it,
too. It notes when the operator was called, and the operator's work says when it was done. The time
that a program waits is recorded as the region "exposed": in `Work.wait`, and at the end of a
backward pass, where DDP waits without a call of Python. If the program marks no steps, they end
with an optimizer's step.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from hvd_ext.c10d import torch_internals
from hvd_ext.events import recorder, region
from hvd_ext.job.ending import at_exit
from hvd_ext.job.polled import Polled
from hvd_ext.tensors import tensors_in

# Its groups report their collectives themselves.
_REPORTS_ITSELF = "hvd_ext"
# Files whose lines are not the program's.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", f"{Path(__file__).parents[1]}/")
# As in the recorder's current.h.
_NO_PEER, _ANY_PEER = -1, -2


class _Group(NamedTuple):
    """A process group on one kind of device.

    Attributes:
        number: its number in the recorder.
        backend: its name.
        ranks: global numbers of its ranks.
    """

    number: int
    backend: bytes
    ranks: list[int]


class _Call(NamedTuple):
    """A call of an operator.

    Attributes:
        operation: its name in MPI.
        group: its group.
        number: a collective's number in the group, from 1; 0 for a message.
        count_bytes: its payload.
        peer: global rank of a message's partner.
        place: file and line of the calling program; None if no line is known.
    """

    operation: bytes
    group: _Group
    number: int
    count_bytes: int
    peer: int
    place: tuple[bytes, int] | None

    @property
    def is_message(self) -> bool:
        return self.number == 0


class _OnGpu(NamedTuple):
    """A call whose work was queued on a GPU.

    Attributes:
        work: that of the call.
        call: the call.
        start_s: when it began.
        queued_s: when it returned.
    """

    work: dist.Work
    call: _Call
    start_s: float
    queued_s: float


# The operation of MPI as which a recording counts an operator of c10d, and the argument whose bytes
# count: what all ranks hold or share out in the end is counted whole, and of gather and scatter
# this rank's piece.
_OPERATORS = {
    "allreduce_": ("allreduce", "tensors"),
    "allreduce_coalesced_": ("allreduce", "tensors"),
    "broadcast_": ("bcast", "tensors"),
    "reduce_": ("reduce", "tensors"),
    "allgather_": ("allgather", "output_tensors"),
    "_allgather_base_": ("allgather", "output_tensor"),
    "allgather_coalesced_": ("allgather", "output_lists"),
    "allgather_into_tensor_coalesced_": ("allgather", "outputs"),
    "reduce_scatter_": ("reduce_scatter", "input_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter", "input_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "inputs"),
    "alltoall_": ("alltoall", "input_tensors"),
    "alltoall_base_": ("alltoall", "input"),
    "gather_": ("gather", "input_tensors"),
    "scatter_": ("scatter", "output_tensors"),
    "send": ("send", "tensors"),
    "recv_": ("recv", "tensors"),
    "recv_any_source_": ("recv", "tensors"),
    "barrier": ("barrier", "tensor"),
    "monitored_barrier_": ("barrier", "tensor"),
}


def watch() -> None:
    """Report torch.distributed to the recorder that is preloaded into this process.

    Call it once. It does nothing without a recorder, or if torch has no torch.distributed.
    """
    library = recorder()
    if library is None or not dist.is_available():
        return
    watcher = _Watcher(library)
    # Makes NCCL time its works; torch reads it when it makes a group.
    os.environ.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")
    for name, counted_as in _OPERATORS.items():
        torch_internals.run_before(name, functools.partial(watcher.call, *counted_as))
    watcher.time_waits()
    register_optimizer_step_post_hook(watcher.stepped)
    at_exit(watcher.end)


def begin_without_mpi(rank: int, size: int, backend: str) -> None:
    """Begin the recording of this rank, unless MPI or an earlier call has begun it.

    Args:
        rank: number in the job.
        size: number of ranks of the job.
        backend: backend of the group that is used first.
    """
    library = recorder()
    if library is not None:
        about = f"PyTorch {torch.__version__}, {backend}, without MPI"
        library.hvprof_begin(rank, size, about.encode())


class _Watcher:
    """Passes the calls of torch.distributed to a recorder."""

    def __init__(self, library: Any) -> None:
        self._library = library
        # The backward pass whose end is timed.
        self._waited_for = -1
        # Groups by kind of device.
        self._groups: WeakKeyDictionary[dist.ProcessGroup, dict[str, _Group | None]] = (
            WeakKeyDictionary()
        )
        self._under_way = Polled("hvprof")
        # In the order of the calls.
        self._on_gpus: deque[_OnGpu] = deque()
        self._looking = threading.Lock()
        self._stepping: int | None = None
        # The call that a thread will wait for next.
        self._here = threading.local()
        # The time that this class took itself.
        self._own_s, self._calls = 0.0, 0

    def call(
        self, operation: str, payload: str, run: Callable[[], Any], arguments: dict[str, Any]
    ) -> Any:
        """Run an operator, and record when it began and when its work was done."""
        tensors = list(tensors_in(arguments[payload]))
        device = tensors[0].device.type if tensors else "cpu"
        group = self._group(torch_internals.group_of(arguments["process_group"]), device)
        if group is None:
            return run()
        entered_s = time.monotonic()
        self._look_at_gpus()
        self._time_end_of_backward()
        call = self._begin(operation, group, tensors, arguments)
        self._here.latest = call
        waits = "async_op" not in arguments and not call.is_message
        start_s = time.monotonic()
        if waits:  # in the operator itself
            self._wait(call)
        try:
            result = run()
        finally:
            if waits:
                self._library.hvprof_wait_ends()
        ran_s = time.monotonic() - start_s
        done = functools.partial(self._done, call, start_s)
        work = torch_internals.work_in(result)
        captures = device == "cuda" and torch.cuda.is_current_stream_capturing()
        if device == "cuda" and work is not None and not captures:
            self._on_gpus.append(_OnGpu(work, call, start_s, start_s + ran_s))
        elif arguments.get("async_op") is False:
            # The caller waits at once. A callback would delay the operation that it waits for.
            self._here.awaited = done
        elif (future := _future_of(work)) is None:
            done()
        else:
            self._under_way.add(functools.partial(_once_over, future, done))
        self._calls += 1
        self._own_s += time.monotonic() - entered_s - ran_s
        return result

    def _begin(
        self,
        operation: str,
        group: _Group,
        tensors: list[torch.Tensor],
        arguments: dict[str, Any],
    ) -> _Call:
        count_bytes = sum(map(_bytes, tensors)) if operation != "barrier" else 0
        name, number, peer = operation.encode(), 0, _NO_PEER
        if operation in ("send", "recv"):
            partner = arguments.get("dst", arguments.get("src"))
            peer = _ANY_PEER if partner is None else group.ranks[partner]
        else:
            number = self._library.hvprof_collective_begins(name, group.number)
        return _Call(name, group, number, count_bytes, peer, _calling_line())

    def _wait(self, call: _Call) -> None:
        self._library.hvprof_wait_begins(
            call.operation, call.group.number, call.number, call.count_bytes, call.peer
        )

    def _done(self, call: _Call, start_s: float, future: Any = None) -> None:
        end_s = time.monotonic()
        if future is not None and torch_internals.has_failed(future):
            return
        self._record(call, start_s, end_s - start_s)
        self._own_s += time.monotonic() - end_s

    def _look_at_gpus(self, is_last: bool = False) -> None:
        """Record the calls that GPUs have done, with their time there.

        This thread asks, for another one must not ask while CUDA captures a graph.

        Args:
            is_last: record all others, too, with the time that it took to queue them.
        """
        if not self._on_gpus or torch.cuda.is_current_stream_capturing():
            return
        with self._looking:
            while self._on_gpus:
                work, call, start_s, queued_s = self._on_gpus[0]
                if not (is_last or work.is_completed()):
                    return
                self._on_gpus.popleft()
                on_gpu_s = torch_internals.gpu_time_s(work)
                self._record(call, start_s, queued_s - start_s if on_gpu_s is None else on_gpu_s)

    def _record(self, call: _Call, start_s: float, duration_s: float) -> None:
        group = call.group
        self._library.hvprof_collective(
            *(call.operation, group.backend, group.number, call.number, call.count_bytes),
            *(start_s, duration_s),
        )
        if call.place:
            self._library.hvprof_called_at(call.operation, *call.place, duration_s)

    def _group(self, group: dist.ProcessGroup, device: str) -> _Group | None:
        by_device = self._groups.setdefault(group, {})
        if device not in by_device:
            by_device[device] = self._enter(group, device)
        return by_device[device]

    def _enter(self, group: dist.ProcessGroup, device: str) -> _Group | None:
        # Such as "cpu:gloo,cuda:nccl".
        backends = dict(one.split(":") for one in dist.get_backend_config(group).split(","))
        backend = backends.get(device, dist.get_backend(group))
        if backend == _REPORTS_ITSELF:
            return None
        begin_without_mpi(dist.get_rank(), dist.get_world_size(), backend)
        ranks = dist.get_process_group_ranks(group)
        # The same on all ranks of the group, and odd, because 0 means no group.
        digest = hashlib.blake2b(f"{group.group_name} {ranks}".encode(), digest_size=8).digest()
        number = self._library.hvprof_group(
            int.from_bytes(digest, "little") | 1,
            group.size(),
            group.rank(),
            group.group_desc.encode(),
            (ctypes.c_int * len(ranks))(*ranks),
        )
        return _Group(number, backend.encode(), ranks)

    def end(self, failed: bool) -> None:
        """End the recording if it was begun here."""
        self._under_way.close()
        self._look_at_gpus(is_last=True)
        self._library.hvprof_end(1e9 * self._own_s / max(1, self._calls))

    def _time_end_of_backward(self) -> None:
        """Record the wait of DDP after its backward pass has computed all gradients.

        Callbacks of a pass run in the order in which they were queued, and DDP queues its own after
        it has started its last bucket. So the first callback here runs before DDP's, and a callback
        that it queues runs after DDP's.
        """
        number = torch_internals.backward_pass()
        if number in (-1, self._waited_for):
            return
        self._waited_for = number
        waits = region("exposed", kind="communication")

        def computed() -> None:
            waits.__enter__()
            if latest := getattr(self._here, "latest", None):
                self._wait(latest)
            torch_internals.at_end_of_backward(waited)

        def waited() -> None:
            self._library.hvprof_wait_ends()
            waits.__exit__(None, None, None)

        torch_internals.at_end_of_backward(computed)

    def time_waits(self) -> None:
        """Record the time of `Work.wait`, and the end of the call that it waits for."""
        wait = dist.Work.wait

        def timed(work: dist.Work, *arguments: Any, **options: Any) -> bool:
            done = self._here.__dict__.pop("awaited", None)
            # The call of this work is not known; the wait counts for the latest call, if there is
            # one.
            latest = getattr(self._here, "latest", None)
            with region("exposed", kind="communication"):
                if latest:
                    self._wait(latest)
                try:
                    was_done = wait(work, *arguments, **options)
                finally:
                    self._library.hvprof_wait_ends()
            if done is not None:
                done()
            return was_done

        dist.Work.wait = functools.wraps(wait)(timed)  # type: ignore[assignment, method-assign]

    def stepped(self, optimizer: object, *_: object) -> None:
        """End a step with the optimizer that was the first to step."""
        if not dist.is_initialized():
            return  # waits in Horovod are not known here
        self._look_at_gpus()
        if self._stepping is None:
            # From its next step on: by then, a program that marks steps itself has marked one.
            self._stepping = id(optimizer)
        elif self._stepping == id(optimizer):
            self._library.hvprof_step_ended()


def _calling_line() -> tuple[bytes, int] | None:
    """Find this thread's innermost line outside of installed packages and hvd_ext."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if not any(part in path for part in _LIBRARIES):
            return os.fsencode(path), frame.f_lineno
        frame = frame.f_back
    return None


def _future_of(work: dist.Work | None) -> Any:
    try:
        return None if work is None else work.get_future()
    except RuntimeError:  # a message on Gloo has none
        return None


def _once_over(future: Any, done: Callable[[Any], None]) -> bool:
    over = bool(future.done())
    if over:
        done(future)
    return over


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
