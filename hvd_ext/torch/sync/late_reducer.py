"""Gradients that are used one step late: they travel behind the next step's backward.

Two reducers take turns. While one's gradients travel, the other takes in those of the step
after, and the optimizer is then given the first one's. All ranks use the same late mean, so
weights stay the same everywhere (Pipe-SGD of width 2: Li et al., NeurIPS 2018). Buckets are
not laid anew by measurement: little depends on them where a whole step hides the exchange.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hvd_ext.errors import UsageError
from hvd_ext.events import region
from hvd_ext.torch.reduction.reducer import Reducer

if TYPE_CHECKING:
    from hvd_ext.torch.parameters import NamedParameters
    from hvd_ext.torch.reduction.arena_factory import ArenaFactory
    from hvd_ext.torch.reduction.residuals import Residuals
    from hvd_ext.torch.reduction.sparse import SparseExchange


class _Turn(Reducer):
    """A Reducer whose exchange ends later than its step."""

    can_share = False

    def send(self) -> None:
        """Start to reduce what is not on its way yet; as `synchronize`, without the waiting."""
        self._complete()
        for bucket in self._buckets[self._next :]:
            self._arenas.submit(bucket)
        self._next = len(self._buckets)
        self.in_flight = False  # the program may go on to the next step

    def collect(self) -> None:
        """Wait for what was sent, and leave it in `.grad`."""
        start_s = time.monotonic()
        with region("exposed", kind="communication"):
            self._arenas.wait()
            self._finish()
        self._exposed_s = time.monotonic() - start_s
        self._end_step()
        for slot in self._slots:
            if slot.parameter.requires_grad:
                slot.parameter.grad = slot.view.data


class LateReducer(_Turn):
    """A Reducer that gives the optimizer the gradients of the step before."""

    _second: _Turn | None = None
    _under_way: _Turn | None = None

    def __init__(
        self,
        named_parameters: NamedParameters,
        passes_per_step: int,
        factory: ArenaFactory,
        sparse: SparseExchange,
    ) -> None:
        """As Reducer."""
        super().__init__(named_parameters, passes_per_step, factory, sparse)
        self._second = _Turn(named_parameters, passes_per_step, factory, sparse)
        self._second.listening = False

    @property
    def in_flight(self) -> bool:
        """This rank has a part of the step's gradients."""
        return self._in_flight or (self._second is not None and self._second.in_flight)

    @in_flight.setter
    def in_flight(self, value: bool) -> None:
        self._in_flight = value

    @property
    def is_behind(self) -> bool:
        """Whether gradients are under way that the optimizer has not had."""
        return self._under_way is not None

    def synchronize(self) -> None:
        """Start to reduce this step's gradients, and leave the last step's in `.grad`.

        Where there are none, `.grad` is None.

        Raises: as of Reducer.
        """
        assert self._second is not None
        now, next_ = (self, self._second) if self.listening else (self._second, self)
        now.send()
        if not self.collect_late():
            for slot in self._slots:
                slot.parameter.grad = None
        self._under_way = now
        now.listening, next_.listening = False, True

    def collect_late(self) -> bool:
        """Leave in `.grad` what is under way; returns whether anything was."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return False
        under_way.collect()
        return True

    def add(self, named_parameters: NamedParameters) -> None:
        """As of Reducer.

        Raises:
            UsageError: gradients are under way.
        """
        if self.is_behind:
            raise UsageError(
                "add_param_group() while the last step's gradients are under way: call "
                "optimizer.drain() on all ranks before"
            )
        super().add(named_parameters)
        if self._second is not None:
            self._second.add(named_parameters)

    def drain(self) -> Residuals:
        """As of Reducer, of both."""
        found = super().drain()
        for parameter, more in (self._second.drain() if self._second else {}).items():
            found[parameter] = found[parameter] + more
        # From here on both have what `keep` gives them elsewhere.
        self.keep(found)
        return found

    def keep(self, drained: Residuals) -> None:
        """As of Reducer: the one whose turn it is sends it."""
        assert self._second is not None
        now, other = (self, self._second) if self.listening else (self._second, self)
        Reducer.keep(now, drained)
        Reducer.keep(other, {})

    def set_passes_per_step(self, passes: int) -> None:
        """As of Reducer."""
        super().set_passes_per_step(passes)
        if self._second is not None:
            self._second.set_passes_per_step(passes)

    def reset(self) -> None:
        """Forget gradients of this step and of the last one."""
        if self.in_flight:
            self.synchronize()
        self.collect_late()
        self._reset()
        if self._second is not None:
            self._second._reset()

    def close(self) -> None:
        """As of Reducer."""
        super().close()
        if self._second is not None:
            self._second.close()
