"""Gradients in the arena: when a bucket is complete, it is reduced.

Every gradient ends up in the arena's memory and `.grad` is a view of it. A gradient
that autograd made elsewhere (because `.grad` was None) is copied in while it is still
in the cache; one that was accumulated into the view is not copied at all. Whatever a
program puts into `.grad`, the slots' own views stay where they are.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from hvd_ext.arena.cuda.arena import DeviceArena
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import Bucket, ParameterSpec
from hvd_ext.errors import UsageError
from hvd_ext.events import region
from hvd_ext.job.progress_thread import Progress, wait_for
from hvd_ext.shm.regions import WindowError

Arena = HostArena | DeviceArena
NamedParameters = Sequence[tuple[str, torch.nn.Parameter]]
# Starts the exchange of a sparse gradient; calling the result gives the reduced one.
SparseExchange = Callable[[torch.Tensor, str], Callable[[], torch.Tensor]]
# Steps until it is known when gradients are ready, and which of them are sparse.
_FUSE_AFTER = 4

log = logging.getLogger("hvd_ext")


class ArenaMaker(Protocol):
    """Makes arenas, on all ranks alike."""

    @property
    def may_fuse(self) -> bool:
        """Whether the buckets may follow from measurement."""

    def first(self, specs: list[ParameterSpec]) -> tuple[Arena, str]:
        """An arena before anything was measured, and the reason for its buckets."""

    def fused(self, specs: list[ParameterSpec], ready_s: list[float]) -> tuple[Arena, str]:
        """One that suits when gradients are ready, and the reason for its buckets."""

    def named_by_any(self, indices: list[int]) -> list[int]:
        """What any rank names, the same on every rank; collective."""


@dataclass
class _Slot:
    name: str
    parameter: torch.nn.Parameter
    view: torch.Tensor
    bucket: int | None  # None: it is sparse, and not in the arena
    passes_left: int
    version: int = 0  # of `.grad` when it was given to the exchange
    sparse: bool = False
    sparse_result: Callable[[], torch.Tensor] | None = None
    ready_s: float = math.inf  # after backward began


def specify(named_parameters: NamedParameters) -> list[ParameterSpec]:
    """Describe parameters for the plan. A gradient has its parameter's memory layout."""
    return [
        ParameterSpec(name, tuple(p.shape), _grad_strides(p), str(p.dtype).removeprefix("torch."))
        for name, p in named_parameters
    ]


class Gradients:
    """The gradients of one optimizer, kept in arenas and reduced as they get ready.

    Every rank builds it alike. It needs all of `add`, `synchronize` and backward to
    be called from one thread.
    """

    def __init__(
        self, passes_per_step: int, size: int, arenas: ArenaMaker, reduce_sparse: SparseExchange
    ) -> None:
        """Begin with no parameters.

        Args:
            passes_per_step: how many backward passes fill a gradient.
            size: number of ranks, for the events.
            arenas: makes the arenas.
            reduce_sparse: exchanges what the arena does not serve.
        """
        self._passes_per_step = passes_per_step
        self._make = arenas
        self._step = 0  # since parameters were added
        self._begun_s: float | None = None
        self._why = ""
        self._size = size
        self._reduce_sparse = reduce_sparse
        self._progress = Progress()
        self._pending: deque[Future[None]] = deque()
        self._arenas: list[Arena] = []
        # An optimizer that is dropped leaves no threads, which would outlive MPI.
        weakref.finalize(self, _close, self._progress, self._arenas).atexit = False
        self._memory: list[tuple[torch.Tensor, int]] = []  # of each arena, and its address
        self._slots: list[_Slot] = []
        self._buckets: list[tuple[Arena, int, Bucket]] = []
        self._unready: list[int] = []
        self._next = 0
        self.in_flight = False

    def add(self, named_parameters: NamedParameters) -> None:
        """Take in parameters, in buckets after those that are there; collective."""
        arena, self._why = self._make.first(specify(named_parameters))
        slots = [
            _Slot(name, parameter, parameter, 0, self._passes_per_step)
            for name, parameter in named_parameters
        ]
        self._place(arena, slots)
        for slot in slots:
            self._watch(slot)
        self._step = 0

    def explain(self) -> str:
        """Say which buckets there are and why, and how they are reduced."""
        return "\n".join([f"buckets: {self._why}", *(arena.explain() for arena in self._arenas)])

    def set_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes fill a gradient, between two steps."""
        self._passes_per_step = passes
        self._reset()

    def synchronize(self) -> None:
        """Reduce what is not reduced yet, wait for all of it, and leave it in `.grad`.

        A parameter that got no gradient on this rank takes part with zeros.

        Raises:
            StallError: ranks did not come to an exchange.
            UsageError: a gradient was changed while it was exchanged, or hvd.shutdown()
                was called.
        """
        if any(memory.data_ptr() != address for memory, address in self._memory):
            raise UsageError(
                "the gradients' memory was moved, as model.share_memory() does: call that before "
                "DistributedOptimizer()"
            )
        for slot in self._slots:
            if slot.passes_left > 0:
                slot.passes_left = 0
                self._fill(slot)
            else:
                _see_untouched(slot)
        with region("exposed", kind="communication"):
            for arena in self._arenas:
                arena.ready(len(arena.layout.buckets) - 1)
            # What is left is done here: this thread has nothing else to do, and a core.
            wait_for(self._pending)
            for reducing, index, _ in self._buckets[self._next :]:
                reducing.reduce(index)
            for arena in self._arenas:
                arena.finish()
            if self._step < _FUSE_AFTER:
                self._agree_on_sparse()
        for slot in self._slots:
            if slot.sparse_result is not None:
                slot.parameter.grad = slot.sparse_result()
        self._reset()
        self._step += 1
        if self._step == _FUSE_AFTER and self._make.may_fuse and self._buckets:
            self._fuse()

    def reset(self) -> None:
        """Forget gradients of this step; a bucket that is on its way is waited for."""
        if self.in_flight:
            self.synchronize()
        self._reset()

    def close(self) -> None:
        """End the progress thread and the arenas' watchdogs."""
        _close(self._progress, self._arenas)

    def _place(self, arena: Arena, slots: Sequence[_Slot]) -> None:
        """Give slots their memory in the arena, in the order of its parameters."""
        self._arenas.append(arena)
        if isinstance(arena, DeviceArena):
            self._progress.submit(arena.enter_thread)
        memory = _as_tensor(arena)
        self._memory.append((memory, memory.data_ptr()))
        for index, bucket in enumerate(arena.layout.buckets):
            for place in bucket.spans:
                slot = slots[place.parameter]
                slot.view = _view(memory, bucket, place.offset_bytes, slot.parameter)
                slot.bucket = len(self._buckets)
            self._buckets.append((arena, index, bucket))
            self._unready.append(len(bucket.spans))

    def _fuse(self) -> None:
        """Lay all gradients out anew, by when they were ready; collective.

        What `.grad` refers to stays valid: gradients move as they are made again.
        """
        dense = [slot for slot in self._slots if not slot.sparse]
        measured = [slot.ready_s for slot in dense if slot.ready_s < math.inf]
        latest_s = max(measured, default=0.0)
        ready_s = [min(slot.ready_s, latest_s) for slot in dense]
        specs = specify([(slot.name, slot.parameter) for slot in dense])
        arena: Arena | None = None
        try:
            if dense:
                arena, self._why = self._make.fused(specs, ready_s)
            else:
                self._why = "none, because all gradients are sparse"
        except WindowError as error:
            self._why = f"as at first, because there is no memory for others: {error}"
            return
        for old in self._arenas:
            old.close()
        self._arenas.clear()
        self._memory.clear()
        self._buckets, self._unready = [], []
        for slot in self._slots:
            slot.bucket = None
            slot.view = slot.parameter.new_empty(0)  # of the old memory nothing is kept
        if arena is not None:
            self._place(arena, dense)
        log.info("hvd_ext: %s", self._why)

    def _watch(self, slot: _Slot) -> None:
        # The parameter must not keep alive what is the optimizer's: through autograd's
        # hooks the collector does not see such a cycle.
        gradients, index = weakref.ref(self), len(self._slots)

        def on_gradient(_: torch.Tensor) -> None:
            owner = gradients()
            if owner is not None:
                owner._ready(owner._slots[index])

        self._slots.append(slot)
        slot.parameter.register_post_accumulate_grad_hook(on_gradient)

    def _ready(self, slot: _Slot) -> None:
        if slot.passes_left <= 0:
            _note(slot)  # the complaint is this one, also if step() is called nevertheless
            raise AssertionError(
                f"the gradient of {slot.name!r} was computed more than backward_passes_per_step = "
                f"{self._passes_per_step} times before step(): raise backward_passes_per_step to "
                "accumulate gradients"
            )
        self.in_flight = True
        slot.passes_left -= 1
        if slot.passes_left > 0:
            self._adopt(slot)
            return
        if 0 < self._step < _FUSE_AFTER:  # the first step is slower than any other
            now_s = time.monotonic()
            self._begun_s = self._begun_s or now_s
            slot.ready_s = min(slot.ready_s, now_s - self._begun_s)
        self._fill(slot)
        if slot.bucket is None:
            return
        self._unready[slot.bucket] -= 1
        while self._next < len(self._buckets) and self._unready[self._next] == 0:
            self._submit_next()

    def _adopt(self, slot: _Slot) -> None:
        """Bring a gradient that autograd made elsewhere into the arena."""
        grad = slot.parameter.grad
        if grad is None or grad.is_sparse or slot.sparse:
            return
        if grad.dtype != slot.view.dtype:
            raise UsageError(
                f"the gradient of {slot.name!r} is {grad.dtype}, and was {slot.view.dtype} when "
                "DistributedOptimizer() was called: convert the model before that"
            )
        # A gradient with a graph (create_graph=True) would keep those of all steps alive.
        if grad.data_ptr() != slot.view.data_ptr() or grad.grad_fn is not None:
            slot.view.copy_(grad.detach())
            slot.parameter.grad = slot.view.data

    def _fill(self, slot: _Slot) -> None:
        """Have the slot hold what this rank puts into the exchange."""
        grad = slot.parameter.grad
        if slot.sparse or (grad is not None and grad.is_sparse):
            self._start_sparse(slot)
        elif grad is not None:
            self._adopt(slot)
        else:
            slot.view.zero_()
            if slot.parameter.requires_grad:
                slot.parameter.grad = slot.view.data
        _note(slot)

    def _start_sparse(self, slot: _Slot) -> None:
        # The gradient goes by Horovod's allgather. As long as it has a part of the arena,
        # that stays zero, so that the bucket keeps its place in the order.
        if not slot.sparse and self._step >= _FUSE_AFTER:
            raise UsageError(
                f"the gradient of {slot.name!r} is sparse for the first time in step {self._step}, "
                "where other ranks do not expect it: use the parameter in the first "
                f"{_FUSE_AFTER} steps, or give DistributedOptimizer sparse_as_dense=True"
            )
        slot.sparse = True
        grad = slot.parameter.grad
        if grad is None:
            rows = slot.parameter.new_empty(0, *slot.parameter.shape[1:])
            nowhere = torch.empty(1, 0, dtype=torch.int64, device=rows.device)
            grad = torch.sparse_coo_tensor(
                nowhere, rows, slot.parameter.shape, check_invariants=True
            )
        elif not grad.is_sparse:
            grad = grad.to_sparse(1)
        slot.sparse_result = self._reduce_sparse(grad, slot.name)

    def _agree_on_sparse(self) -> None:
        """Take part in the exchange of what only other ranks knew to be sparse; collective."""
        mine = [index for index, slot in enumerate(self._slots) if slot.sparse]
        for index in self._make.named_by_any(mine):
            if not self._slots[index].sparse:
                self._start_sparse(self._slots[index])

    def _submit_next(self) -> None:
        arena, index, _ = self._buckets[self._next]
        arena.ready(index)
        self._pending.append(self._progress.submit(lambda: arena.reduce(index)))
        self._next += 1

    def _reset(self) -> None:
        for slot in self._slots:
            slot.passes_left = self._passes_per_step
            slot.sparse_result = None
        self._unready = [len(bucket.spans) for _, _, bucket in self._buckets]
        self._next = 0
        self._begun_s = None
        self.in_flight = False


def _close(progress: Progress, arenas: Sequence[Arena]) -> None:
    progress.close()
    for arena in arenas:
        arena.close()


def _note(slot: _Slot) -> None:
    """Remember the gradient as it is: from now on it is being exchanged."""
    grad = slot.parameter.grad
    slot.version = 0 if grad is None else grad._version


def _see_untouched(slot: _Slot) -> None:
    """See that nobody wrote to a gradient meanwhile: ranks would get different sums."""
    grad = slot.parameter.grad
    if grad is None or slot.sparse:
        return
    if grad.data_ptr() != slot.view.data_ptr() or grad._version != slot.version:
        raise UsageError(
            f"the gradient of {slot.name!r} was changed between backward() and step(), while it "
            "was exchanged: call optimizer.synchronize() before, and then step() inside "
            "`with optimizer.skip_synchronize():`"
        )


def _grad_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    # What autograd promises: the parameter's strides if it is dense, else contiguous.
    return torch.empty_like(parameter, device="meta").stride()


def _as_tensor(arena: Arena) -> torch.Tensor:
    """The arena's memory, as bytes."""
    if isinstance(arena, HostArena):
        held: np.ndarray[Any, Any] = arena.data
        return torch.from_numpy(held)
    return from_dlpack(arena.data)


def _view(
    memory: torch.Tensor, bucket: Bucket, offset_bytes: int, parameter: torch.nn.Parameter
) -> torch.Tensor:
    count_bytes = parameter.numel() * parameter.element_size()
    flat = memory[offset_bytes : offset_bytes + count_bytes].view(getattr(torch, bucket.dtype))
    return flat.as_strided(parameter.shape, _grad_strides(parameter))
