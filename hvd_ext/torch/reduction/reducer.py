"""Gradients in the arena: when a bucket is complete, it is reduced.

Gradients end up in the arena's memory, and `.grad` is a view of it (but see `Batch`). A gradient
that autograd made elsewhere, because `.grad` was None, is copied into the arena while it is still
in the cache; a gradient that was accumulated into the view is not copied. A program may put another
tensor into `.grad`; the slots keep their own views.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_ext.errors import UsageError
from hvd_ext.events import region, times_hooks
from hvd_ext.shm.regions import WindowError
from hvd_ext.system.freed_memory import return_free_memory
from hvd_ext.torch.parameters import NamedParameters, specify
from hvd_ext.torch.reduction import residuals
from hvd_ext.torch.reduction.frozen import Frozen
from hvd_ext.torch.reduction.hooks import Hooks
from hvd_ext.torch.reduction.placed import Observer, PlacedArenas
from hvd_ext.torch.reduction.residuals import Residuals
from hvd_ext.torch.reduction.slot import BucketState, GradientSlot
from hvd_ext.torch.reduction.sparse import KNOWN_AFTER, SparseExchange
from hvd_ext.torch.reduction.together import Together
from hvd_ext.units import format_seconds

if TYPE_CHECKING:
    from hvd_ext.arena.protocol import Arena
    from hvd_ext.torch.reduction.arena_factory import ArenaFactory

# Steps until the times of gradients are known; by then it is also known which are sparse.
_REBUILD_AFTER = KNOWN_AFTER
# The step in which the order of a bucket's gradients is noted.
_LEARN_ORDER_IN = _REBUILD_AFTER

log = logging.getLogger("hvd_ext")


class Reducer:
    """The gradients of one optimizer, kept in arenas and reduced as they get ready.

    All ranks build it alike. `add`, `synchronize` and backward must be called from one thread.

    Attributes, in addition to those of `Reduces`:
        listening: gradients that autograd makes are this reducer's.
        times_hooks: hooks are timed in this step.
        can_share: another optimizer may train the same parameters.
        copies_back: short sums may be copied to where autograd has made the gradients.
    """

    join_refusal: str | None = None
    can_share = True
    copies_back = True

    def __init__(
        self,
        named_parameters: NamedParameters,
        passes_per_step: int,
        factory: ArenaFactory,
        sparse: SparseExchange,
    ) -> None:
        """Make an arena for parameters; collective.

        Args:
            named_parameters: the trained parameters.
            passes_per_step: how many backward passes fill a gradient.
            factory: makes the arenas, on all ranks alike.
            sparse: exchanges gradients that the arena does not serve.

        Raises:
            StallError: ranks did not reach this.
            MismatchError: ranks differ in their parameters.
            WindowError: on every rank, if some cannot share memory.
        """
        self.number = 0
        self.in_flight = False
        self.listening = True
        self.times_hooks = False
        self.frozen = Frozen()
        self._factory = factory
        self._passes_per_step = passes_per_step
        self._sparse = sparse
        self._exposed_s = 0.0
        self._step = 0  # since parameters were added
        self._backward_since_s: float | None = None
        self._unsent: Residuals = {}
        self._slots: list[GradientSlot] = []
        self._buckets: list[BucketState] = []
        self._together = Together(self.copies_back)
        self._next = 0  # bucket to be submitted
        arena, self._reason = factory.first(specify(named_parameters))
        self._arenas = PlacedArenas()
        self._hooks = Hooks(self)
        self._take_in(arena, named_parameters)

    def add(self, named_parameters: NamedParameters) -> None:
        """Add parameters, in buckets after the existing ones; collective.

        Raises: as the constructor.
        """
        arena, self._reason = self._factory.first(specify(named_parameters))
        self._together.restore_hooks()
        self._take_in(arena, named_parameters)
        self._step = 0

    def explain(self) -> str:
        """Describe the buckets and their reason, and how they are reduced."""
        parts = [f"buckets: {self._reason}", self._factory.explain()]
        parts += [arena.explain() for arena in self._arenas.arenas]
        return "\n".join([*parts, f"exposed in the last step: {format_seconds(self._exposed_s)}"])

    @property
    def has_residuals(self) -> bool:
        return self._factory.compression.format.has_residual or bool(self._unsent)

    def observe(self, observer: Observer | None) -> None:
        """Pass the gradients of each bucket to a function before it is exchanged."""
        self._arenas.observer = observer

    def drain(self) -> Residuals:
        return residuals.drain(self._arenas.placed, self._factory.node) or self._unsent

    def keep(self, drained: Residuals) -> None:
        """Call residuals.keep for all arenas, now or once a format with residuals is chosen."""
        residuals.keep(self._arenas.placed, drained)
        self._unsent = {} if self._factory.compression.format.has_residual else drained

    def set_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes fill a gradient, between two steps."""
        self._passes_per_step = passes
        self._together.forget()
        self._together.restore_hooks()
        self._reset()

    def synchronize(self) -> None:
        """Reduce the remaining gradients, wait for all, and leave the sums in `.grad`.

        A parameter that got no gradient on this rank takes part with zeros.

        Raises:
            StallError: ranks did not reach an exchange.
            UsageError: a gradient was changed while it was exchanged, or hvd.shutdown()
                was called.
        """
        self._exchange()
        self._rebuild_if_due()

    def _exchange(self) -> None:
        """Reduce the remaining gradients, and wait until this rank has the arenas' results."""
        self._complete()
        start_s = time.monotonic()
        with region("exposed", kind="communication"):
            self._arenas.reduce_rest(self._buckets[self._next :])
            self._finish()
        self._exposed_s = time.monotonic() - start_s
        self._end_step()

    def _complete(self) -> None:
        """Put all gradients of this rank into the arenas."""
        self._arenas.check_unmoved()
        if unfrozen := self.frozen.take():
            self.add(unfrozen)
        self._factory.begin_step(self.number)
        self._bring_in()
        self._together.check_untouched()
        for slot in self._together.outside_batches(self._slots):
            if slot.passes_left > 0:
                slot.passes_left = 0
                self._fill(slot)
            else:
                slot.check_untouched()

    def _finish(self) -> None:
        """Wait for all buckets that the arenas have been given."""
        self._arenas.finish()
        if self._step < KNOWN_AFTER:
            self._sparse.start_what_others_have(self._slots, self._factory.named_by_any)

    def _end_step(self) -> None:
        self._sparse.finish(self._step)
        self._together.give_back()
        for slot in self._together.outside_batches(self._slots):
            if slot.others:
                slot.give_copy()
        self._reset()
        if self._step == _LEARN_ORDER_IN:
            self._together.choose_hooks(self._hooks)
        self._step += 1
        self._together.learns = self._step == _LEARN_ORDER_IN and self._passes_per_step == 1
        self.times_hooks = times_hooks(self._step)

    def _rebuild_if_due(self) -> None:
        if self._step != _REBUILD_AFTER:
            return
        if self._factory.may_rebuild and self._buckets:
            self._rebuild_buckets()
        # Parameters and optimizer state have moved to their places, so their old memory is free.
        return_free_memory()

    def reset(self) -> None:
        """Forget gradients of this step, after waiting for buckets in flight."""
        if self.in_flight:
            self.synchronize()
        self._reset()

    def leave_step(self) -> None:
        """Forget gradients that were accumulated for a step that this rank will not take.

        Raises:
            UsageError: other ranks have a part of it already.
        """
        if self._next:
            raise UsageError(
                "hvd.join() between backward() and step(): other ranks wait for the rest of that "
                "step; call step() before"
            )
        self._reset()

    def take_part(self) -> None:
        """Take part with zeros in a step that other ranks have begun."""
        for slot in self._slots:
            slot.parameter.grad = None
        self.synchronize()

    def close(self) -> None:
        """End the threads, after the exchanges that were started; see `wait_until_closed`."""
        self._arenas.close()

    def _take_in(self, arena: Arena, named_parameters: NamedParameters) -> None:
        slots = [
            GradientSlot(index, name, p, p, self._passes_per_step)
            for index, (name, p) in enumerate(named_parameters, len(self._slots))
        ]
        self._place(arena, slots)
        for slot in slots:
            if self.can_share:
                slot.find_others()
            self._slots.append(slot)
            self._hooks.add(slot.index, slot.parameter)

    def _place(self, arena: Arena, slots: Sequence[GradientSlot]) -> None:
        """Give slots their memory in the arena, in the order of its parameters."""
        self._buckets += self._arenas.place(arena, slots)

    def _rebuild_buckets(self) -> None:
        """Lay out all gradients again, by the times at which they were ready; collective.

        Tensors that `.grad` refers to stay valid: a gradient moves when it is next made.
        """
        dense = [slot for slot in self._slots if not slot.sparse]
        measured = [slot.ready_s for slot in dense if slot.ready_s < math.inf]
        latest_s = max(measured, default=0.0)
        ready_s = [min(slot.ready_s, latest_s) for slot in dense]
        specs = specify([(slot.name, slot.parameter) for slot in dense])
        unsent = self.drain()
        arena: Arena | None = None
        try:
            if dense:
                arena, self._reason = self._factory.rebuilt(specs, ready_s)
            else:
                self._reason = "none, because all gradients are sparse"
        except WindowError as error:
            self._reason = f"unchanged, no memory for the measured ones: {error}"
            return
        self._arenas.discard()
        self._buckets.clear()
        self._together.restore_hooks()
        for slot in self._slots:
            slot.displace()
        if arena is not None:
            self._place(arena, dense)
            self.keep(unsent)
        log.info("hvd_ext: %s", self._reason)

    def ready(self, index: int) -> None:
        """Take the gradient of slot `index`, which autograd has made."""
        slot = self._slots[index]
        if slot.may_wait and slot.passes_left == 1 and self._step >= _REBUILD_AFTER:
            self._take_short(slot)
            return
        if slot.passes_left <= 0:
            # Raised also if step() is called nevertheless.
            slot.hand_over()
            raise AssertionError(
                f"the gradient of {slot.name!r} was computed more than backward_passes_per_step = "
                f"{self._passes_per_step} times before step(): raise backward_passes_per_step to "
                "accumulate gradients"
            )
        self.in_flight = True
        slot.passes_left -= 1
        if slot.passes_left > 0:
            slot.adopt()
            return
        if 0 < self._step < _REBUILD_AFTER:  # the first step is the slowest
            now_s = time.monotonic()
            self._backward_since_s = self._backward_since_s or now_s
            slot.ready_s = min(slot.ready_s, now_s - self._backward_since_s)
        self._fill(slot)
        slot.hand_over()
        if slot.bucket is not None:
            slot.bucket.missing -= 1
            if slot.bucket.missing == 0:
                self._submit_complete()

    def _take_short(self, slot: GradientSlot) -> None:
        """Take a gradient that is copied into the arena together with others."""
        assert slot.bucket is not None
        self.in_flight = True
        self._together.take(slot, slot.bucket, self._bring_in)
        if slot.bucket.missing == 0:
            self._submit_complete()

    def _bring_in(self) -> None:
        self._together.bring_in(self._fill)

    def _submit_complete(self) -> None:
        """Submit complete buckets, if all buckets before them are complete."""
        self._bring_in()
        while self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
            self._arenas.submit(self._buckets[self._next])
            self._next += 1

    def _fill(self, slot: GradientSlot) -> None:
        """Put this rank's gradient into the slot."""
        grad = slot.parameter.grad
        if slot.sparse or (grad is not None and grad.is_sparse):
            self._sparse.start(slot, self._step)
        if grad is not None and not slot.sparse:
            slot.adopt()
        elif not slot.sparse:
            slot.contribute_zeros()

    def _reset(self) -> None:
        for slot in self._together.outside_batches(self._slots):
            slot.passes_left = self._passes_per_step
        for bucket in self._buckets:
            bucket.missing = len(bucket.layout.spans)
        self._sparse.forget()
        self._together.forget()
        self._next = 0
        self._backward_since_s = None
        self.in_flight = False
