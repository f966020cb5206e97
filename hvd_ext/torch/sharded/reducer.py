"""The gradients of a sharded optimizer: each rank sums its shards, and returns parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hvd_ext.arena.sharded import ShardedArena
from hvd_ext.errors import UsageError
from hvd_ext.torch.job.begun_steps import SHARDED_JOIN
from hvd_ext.torch.reduction.reducer import Reducer
from hvd_ext.torch.sharded.gradient import ShardedGradient

if TYPE_CHECKING:
    from hvd_ext.arena.protocol import Arena
    from hvd_ext.torch.parameters import NamedParameters
    from hvd_ext.torch.reduction.arena_factory import ArenaFactory
    from hvd_ext.torch.reduction.slot import GradientSlot
    from hvd_ext.torch.reduction.sparse import SparseExchange
    from hvd_ext.torch.sharded.shards import Shards


class ShardedReducer(Reducer):
    """A Reducer that gives each rank only the sums of its shards, unless all are requested."""

    join_refusal: str | None = SHARDED_JOIN
    can_share = False
    copies_back = False

    def __init__(
        self,
        named_parameters: NamedParameters,
        passes_per_step: int,
        factory: ArenaFactory,
        sparse: SparseExchange,
        shards: Shards,
    ) -> None:
        """See Reducer; `shards` gets its parts of the parameters."""
        self._shards = shards
        super().__init__(named_parameters, passes_per_step, factory, sparse)

    def reduce(self) -> None:
        """Reduce the remaining gradients; this rank then has the sums of its shards.

        Raises: as `synchronize`.
        """
        self._exchange()
        self._shards.hide_gradients()

    def synchronize(self) -> None:
        """Synchronize like Reducer: `.grad` then has the whole sums."""
        self._exchange()
        for arena in self._sharded_arenas():
            arena.give_sums()

    def make_zeros(self) -> None:
        """Use zeros as the gradients of this step, without an exchange."""
        self.reset()
        for slot in self._slots:
            slot.contribute_zeros()

    def adopt(self) -> None:
        """Take over gradients that the user put into `.grad` after `synchronize`.

        Raises:
            UsageError: there are gradients that ranks have not exchanged.
        """
        if self.in_flight:
            raise UsageError(
                "step() with gradients that ranks have not exchanged: pass no closure that calls "
                "backward(), and call synchronize() before a step() inside skip_synchronize()"
            )
        for slot in self._slots:
            if not isinstance(slot.parameter.grad, ShardedGradient):
                slot.adopt()

    def allow_parameters(self) -> None:
        """Let the node's ranks write their parameters while this rank updates its own."""
        for arena in self._sharded_arenas():
            arena.allow_parameters()

    def give_parameters(self) -> None:
        """Write this rank's updated parameters to the node's ranks; collective.

        Raises:
            StallError: ranks did not reach this.
        """
        for arena in self._sharded_arenas():
            arena.give_parameters()
        self._shards.updated()
        if self._shards.changes_gradients:
            self._shards.hide_gradients()
        self._rebuild_if_due()

    def _sharded_arenas(self) -> list[ShardedArena]:
        return [arena for arena in self._arenas.arenas if isinstance(arena, ShardedArena)]

    def _place(self, arena: Arena, slots: Sequence[GradientSlot]) -> None:
        super()._place(arena, slots)
        assert isinstance(arena, ShardedArena)
        arena.check_while_waiting(partial(self._factory.refuse_join, SHARDED_JOIN))
        self._shards.place(arena, slots)

    def _rebuild_buckets(self) -> None:
        # A weight under weight_norm that was applied after wrapping shares the old weight's memory,
        # and follows it.
        if shared := self._factory.named_by_any(self._shards.shared()):
            name = self._slots[shared[0]].name
            self._reason = f"unchanged: another tensor of the program has the memory of {name!r}"
            return
        self._shards.place_anew(super()._rebuild_buckets)
