"""Any operation with a window, on a partitioned tensor: interior, exchange, rim.

What a rank owns of the output is cut into the interior, whose inputs it has already, and
slabs around it. The interior is computed from the shard as it lies, without a copy, while
halos are on their way; then each slab from a small block put together for it.

A linear operation saves putting interior and slabs together, and taking their gradients
apart again, which for large shards costs as much as many a layer: all that is owned is
computed from the shard alone, as if zeros lay around it, and what the halos' cells add to
the slabs is added there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hvd_ext.spatial.exchange.assemble import Add, cells, join
from hvd_ext.spatial.exchange.halo import Finish, Link, Open
from hvd_ext.spatial.geometry.exchange_plan import Routes, routes
from hvd_ext.spatial.geometry.partition import Box, intersect_boxes, peel, shard
from hvd_ext.spatial.geometry.windows import Sliding, Window, interior, needs
from hvd_ext.spatial.tensor import SpatialTensor, result_dtype

# Below this part of a rank's outputs, an interior of its own saves too little.
_WORTH = 0.5
# From this part on, computing the rim's part in the own shard twice costs less than
# putting interior and rim together: of fresh memory, most of which is page faults.
_SUMS_WORTH = 0.875

Operation = Callable[[Tensor, Box, Box], Tensor]


@dataclass(frozen=True, slots=True)
class Shares:
    """A linear operation by what adds to its outputs; both results are new memory.

    Attributes:
        own: from the shard, all that is owned, as if zeros lay around the shard.
        more: from a block of inputs, what they add to the outputs they reach.
    """

    own: Callable[[Tensor], Tensor]
    more: Callable[[Tensor], Tensor]


def windowed(
    x: SpatialTensor,
    windows: Sequence[Window],
    extents: Sequence[int],
    operation: Operation,
    fill: float = 0.0,
    ties: Sequence[Tensor] = (),
    empty: Callable[[Tensor], Tensor] | None = None,
    shares: Shares | None = None,
) -> SpatialTensor:
    """Run an operation with a window.

    Args:
        x: the input.
        windows: per split dim, which inputs an output needs.
        extents: global extents of the output.
        operation: `(block, outputs, inputs)` computes the box `outputs` from a block
            of the padded input that holds the box `inputs`: just what the windows say.
        fill: what stands outside the sample.
        ties: what else the operation reads (parameters), so that the output of a rank
            without any outputs hangs on them as everybody else's does.
        empty: from the shard (of no cells or some), a tensor whose leading dims and dtype
            are those of the operation's result; by default those of the input.
        shares: the operation once more, where it is linear, and torch can pad the shard.
    """
    here = x.grid.coordinates(len(x.extents))
    owned = shard(extents, x.parts, here)
    plan = routes(
        x.extents,
        tuple(
            tuple((interval,) for interval in needs(window, count, extent, parts))
            for window, count, extent, parts in zip(
                windows, extents, x.extents, x.parts, strict=True
            )
        ),
        here,
    )
    core = tuple(map(interior, windows, owned, plan.shard, x.extents))
    if _cells(core) < _WORTH * _cells(owned):
        core = tuple((begin, begin) for begin, _ in owned)
    run = _Run(x, plan, windows, operation, fill)
    if intersect_boxes(run.reach(core), plan.shard) is None:
        core = tuple((begin, begin) for begin, _ in owned)
    if shares is not None and 0 < _cells(core) >= _SUMS_WORTH * _cells(owned):
        return SpatialTensor(run.sums(owned, core, shares), x.grid, extents)
    return SpatialTensor(run.outputs(owned, core, ties, empty), x.grid, extents)


def padding_of_shard(
    x: SpatialTensor, windows: Sequence[Window], extents: Sequence[int], padding: Sequence[int]
) -> list[int] | None:
    """What torch has to pad this rank's shard with to compute just what the rank owns.

    Args:
        x: the input.
        windows: per split dim.
        extents: global extents of the output.
        padding: of dims whose window is not a sliding one.

    Returns:
        Cells per split dim, before and after alike; None where no number does, or 16-bit
        sums would be rounded once more than the whole's.
    """
    if result_dtype(x.local).itemsize < 4:
        return None
    owned = shard(extents, x.parts, x.grid.coordinates(len(x.extents)))
    found = [
        window.padding_of(inputs, outputs) if isinstance(window, Sliding) else given
        for window, inputs, outputs, given in zip(windows, x.box, owned, padding, strict=True)
    ]
    return None if None in found else [cells for cells in found if cells is not None]


def _cells(box: Box) -> int:
    count = 1
    for begin, end in box:
        count *= max(0, end - begin)
    return count


class _Run:
    """One operation on its way."""

    def __init__(
        self,
        x: SpatialTensor,
        plan: Routes,
        windows: Sequence[Window],
        operation: Operation,
        fill: float,
    ) -> None:
        self.x, self.plan, self.windows = x, plan, windows
        self.operation, self.fill = operation, fill

    def reach(self, outputs: Box) -> Box:
        """The inputs of a box of outputs, unclipped."""
        return tuple(
            window.reach(interval) for window, interval in zip(self.windows, outputs, strict=True)
        )

    def outputs(
        self,
        owned: Box,
        core: Box,
        ties: Sequence[Tensor],
        empty: Callable[[Tensor], Tensor] | None,
    ) -> Tensor:
        """Compute what is owned: the core, then the slabs."""
        x, plan, local = self.x, self.plan, self.x.local
        slabs = peel(owned, core)
        done: list[tuple[Box, Tensor]] = []
        has_core = _cells(core) > 0
        # What of the own shard each block wants; the core's lies in it wholly, but for
        # inputs beyond the sample that a transposed window names in vain.
        wanted = [
            intersect_boxes(self.reach(box), plan.shard)
            for box in ([core] if has_core else []) + slabs
        ]
        inner = [box for box in wanted if box is not None]
        if not plan.active:
            slices = [local[cells(box, plan.shard)] for box in inner]
            pieces: list[Tensor] = []
            # A block of nothing but padding must hang on the input as all others do.
            tie: list[Tensor] = [] if inner else [local]
        else:
            link = Link(plan, x.grid.space)
            token, *slices = Open.apply(link, tuple(inner), local)
            if not x.grid.overlap:
                tie, pieces = self._finish(link, token)
        rest = iter(slices)
        parts = [None if box is None else next(rest) for box in wanted]
        if has_core:
            box, part = wanted.pop(0), parts.pop(0)
            assert box is not None
            assert part is not None
            done.append((core, self.operation(part, core, box)))
        if plan.active and x.grid.overlap:
            tie, pieces = self._finish(link, token)
        sources = list(zip(plan.received_boxes, pieces, strict=True))
        for slab, box, part in zip(slabs, wanted, parts, strict=True):
            reach = self.reach(slab)
            found = [] if box is None or part is None else [(box, part)]
            for held, piece in sources:
                shared = intersect_boxes(held, reach)
                if shared is not None:
                    found.append((shared, piece[cells(shared, held)]))
            block = join(reach, found, local, self.fill, ())
            done.append((slab, self.operation(block, slab, reach)))
        if len(done) == 1 and done[0][0] == owned and not tie:
            return done[0][1]
        like = local
        if not done:
            # A rank without outputs: its empty shard must still have the right leading
            # dims, and hang on whatever the others' do.
            like = local if empty is None else empty(local)
            tie = [*tie, *ties, local]
        return join(owned, done, like, 0.0, tie)

    def sums(self, owned: Box, core: Box, shares: Shares) -> Tensor:
        """Compute what is owned from the shard, and add what the halos add."""
        x, plan = self.x, self.plan
        if not plan.active:
            return shares.own(x.local)
        link = Link(plan, x.grid.space, whole=True)
        token, own = Open.apply(link, (plan.shard,), x.local)
        if not x.grid.overlap:
            ties, pieces = self._finish(link, token)
        total = shares.own(own)
        if x.grid.overlap:
            ties, pieces = self._finish(link, token)
        added: list[tuple[Box, Tensor]] = []
        for slab in peel(owned, core):
            reach = self.reach(slab)
            found = [
                (shared, piece[cells(shared, held)])
                for held, piece in zip(plan.received_boxes, pieces, strict=True)
                if (shared := intersect_boxes(held, reach)) is not None
            ]
            # Without any the slab lies at the border of the sample.
            if found:
                added.append((slab, shares.more(join(reach, found, x.local, 0.0, ()))))
        boxes = tuple(box for box, _ in added)
        summed: Tensor = Add.apply(owned, boxes, total, *(part for _, part in added), *ties)
        return summed

    def _finish(self, link: Link, token: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        tie, *pieces = Finish.apply(link, token)
        return [tie], pieces
