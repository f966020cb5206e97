"""Gradients that are used one step late: they travel during the next step's backward.

Two reducers alternate. While the gradients of one travel, the other collects those of the next
step, and the optimizer then gets the gradients of the first one. All ranks use the same late mean,
so weights stay the same everywhere (Pipe-SGD of width 2: Li et al., NeurIPS 2018). Buckets are not
laid out again by measurement: little depends on them where a whole step hides the exchange.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hvd_ext.errors import UsageError
from hvd_ext.events import region
from hvd_ext.torch.reduction.frozen import Frozen
from hvd_ext.torch.reduction.reducer import Reducer

if TYPE_CHECKING:
    from hvd_ext.torch.parameters import NamedParameters
    from hvd_ext.torch.reduction.arena_factory import ArenaFactory
    from hvd_ext.torch.reduction.placed import Observer
    from hvd_ext.torch.reduction.residuals import Residuals
    from hvd_ext.torch.reduction.sparse import SparseExchange


class _Turn(Reducer):
    """A Reducer whose exchange ends later than its step."""

    can_share = False
    copies_back = False

    def send(self) -> None:
        """Start to reduce the remaining gradients, like `synchronize`, but do not wait."""
        self._complete()
        for bucket in self._buckets[self._next :]:
            self._arenas.submit(bucket)
        self._next = len(self._buckets)
        self.in_flight = False  # the program may continue with the next step

    def collect(self) -> None:
        """Wait for the sent gradients, and leave the sums in `.grad`."""
        start_s = time.monotonic()
        with region("exposed", kind="communication"):
            self._arenas.wait()
            self._finish()
        self._exposed_s = time.monotonic() - start_s
        self._end_step()
        for slot in self._slots:
            if slot.parameter.requires_grad:
                slot.parameter.grad = slot.view.data

    def forget_gradients(self) -> None:
        """Leave None in `.grad`."""
        for slot in self._slots:
            slot.parameter.grad = None


class LateReducer:
    """Gives the optimizer the gradients of the previous step; otherwise like Reducer.

    Attributes:
        number, frozen, join_refusal: see Reducer.
    """

    join_refusal: str | None = None

    def __init__(
        self,
        named_parameters: NamedParameters,
        passes_per_step: int,
        factory: ArenaFactory,
        sparse: SparseExchange,
    ) -> None:
        self.number = 0
        self.frozen = Frozen()
        # The reducer of this step's gradients, and that of the previous and the next step.
        self._now, self._other = (
            _Turn(named_parameters, passes_per_step, factory, sparse) for _ in range(2)
        )
        self._other.listening = False
        self._under_way: _Turn | None = None

    @property
    def in_flight(self) -> bool:
        return self._now.in_flight or self._other.in_flight

    @property
    def is_behind(self) -> bool:
        """Whether gradients are in flight that the optimizer has not used."""
        return self._under_way is not None

    @property
    def has_residuals(self) -> bool:
        return self._now.has_residuals or self._other.has_residuals

    def explain(self) -> str:
        return self._now.explain()  # both have the same buckets

    def synchronize(self) -> None:
        """Start to reduce this step's gradients, and leave the last step's in `.grad`.

        If there are none, `.grad` is None.

        Raises: as of Reducer.
        """
        self.frozen.take()  # refuses parameters that are trained now
        self._now.send()
        if not self.collect_late():
            self._now.forget_gradients()
        self._under_way = self._now
        self._now, self._other = self._other, self._now
        self._now.listening, self._other.listening = True, False

    def collect_late(self) -> bool:
        """Leave the gradients in flight in `.grad`; returns whether there were any."""
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
        self._now.add(named_parameters)
        self._other.add(named_parameters)

    def observe(self, observer: Observer | None) -> None:
        self._now.observe(observer)
        self._other.observe(observer)

    def drain(self) -> Residuals:
        found = self._now.drain()
        for parameter, more in self._other.drain().items():
            found[parameter] = found[parameter] + more
        # From here on, both get their residuals by `keep`.
        self.keep(found)
        return found

    def keep(self, drained: Residuals) -> None:
        """See Reducer; the reducer of this step's gradients sends the residuals."""
        self._now.keep(drained)
        self._other.keep({})

    def set_passes_per_step(self, passes: int) -> None:
        self._now.set_passes_per_step(passes)
        self._other.set_passes_per_step(passes)

    def reset(self) -> None:
        """Forget gradients of this step and of the last one."""
        if self.in_flight:
            self.synchronize()
        self.collect_late()
        self._now.reset()
        self._other.reset()

    def leave_step(self) -> None:
        self._now.leave_step()

    def take_part(self) -> None:
        self._now.forget_gradients()
        self.synchronize()

    def close(self) -> None:
        self._now.close()
        self._other.close()
