"""Any operation with windows, on a partitioned tensor: interior, exchange, boundary.

A rank's part of the output is cut into the interior, whose inputs the rank already has, and the
boundary, slabs around the interior. The interior is computed from the shard in place, without a
copy, while halos travel; then each slab is computed from a small block that is assembled for it.

A linear operation can avoid joining the interior and the slabs, and splitting their gradients
again, which for large shards costs as much as some layers. All owned outputs are computed from the
shard as if zeros surrounded it, and the contributions of the halos' cells are added to the slabs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hvd_ext.spatial.dtypes import result_dtype
from hvd_ext.spatial.exchange.assemble import Add, index_of, join, layout
from hvd_ext.spatial.exchange.halo import exchange_around
from hvd_ext.spatial.geometry.partition import Box
from hvd_ext.spatial.geometry.window_plan import Block, WindowPlan, plan_windows
from hvd_ext.spatial.geometry.windows import Window
from hvd_ext.spatial.layers.windows.ways import chosen
from hvd_ext.spatial.tensor import SpatialTensor

# Below this part of a rank's outputs, a separate interior saves too little.
_WORTH = 0.5
# A share that is never reached.
_NEVER = 2.0
# From this share on, computing the boundary twice costs less than joining interior and boundary,
# which needs fresh memory and so page faults.
_SUMS_WORTH = 0.875

Operation = Callable[[Tensor, Box, Box], Tensor]
Piece = tuple[Box, Tensor]


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear operation as two functions; both return new memory.

    Attributes:
        own: computes all owned outputs from the shard, with the given zeros per dim on both sides.
        more: computes from a block of inputs their contributions to the outputs that they reach.
        most_padding: zeros per dim that `own` accepts; None for any number.
    """

    own: Callable[[Tensor, Sequence[int]], Tensor]
    more: Callable[[Tensor], Tensor]
    most_padding: Sequence[int] | None = None

    def fits(self, x: SpatialTensor, padding: Sequence[int]) -> bool:
        """Whether the sums equal those of the whole; 16-bit sums would be rounded once more."""
        limits = padding if self.most_padding is None else self.most_padding
        return result_dtype(x.local).itemsize >= 4 and all(
            cells <= most for cells, most in zip(padding, limits, strict=True)
        )


def windowed(
    x: SpatialTensor,
    windows: Sequence[Window],
    extents: Sequence[int],
    operation: Operation,
    fill: float = 0.0,
    ties: Sequence[Tensor] = (),
    empty: Callable[[Tensor], Tensor] | None = None,
    linear: Linear | None = None,
    keeps_layout: bool = True,
) -> SpatialTensor:
    """Run an operation with windows.

    Args:
        x: the input.
        windows: per split dim, the inputs that an output needs.
        extents: global extents of the output.
        operation: `(block, outputs, inputs)` computes the box `outputs` from a block of the padded
            input that holds exactly the box `inputs`.
        fill: value outside of the sample.
        ties: other tensors that the operation reads (parameters), so that the result of a rank
            without outputs also depends on them.
        empty: makes from the shard, which may have no cells, a tensor with the leading dims and the
            dtype of the operation's result; by default those of the input.
        linear: the same operation in linear form, if it is linear.
        keeps_layout: whether torch's operation returns channels_last for channels_last.
    """
    outputs = tuple(extents)
    places = tuple(windows), x.extents, outputs, x.parts, x.place
    plan = plan_windows(*places, _WORTH)

    def overlapped() -> Tensor:
        if (
            linear is not None
            and plan.padding is not None
            and plan.interior is not None
            and plan.interior_share >= _SUMS_WORTH
            and linear.fits(x, plan.padding)
        ):
            return _by_sums(x, plan, plan.padding, linear)
        return _by_blocks(x, plan, operation, fill, ties, empty)

    def whole() -> Tensor:
        return _by_blocks(x, plan_windows(*places, _NEVER), operation, fill, ties, empty)

    compute = overlapped
    if plan.exchange.active:
        shapes = tuple(tuple(tie.shape) for tie in ties)
        key = (places[:4], x.lead, x.dtype, shapes)
        layer = f"{tuple(x.shape)} to {outputs}, parameters {list(shapes)}, {x.dtype}"
        compute = chosen(x, key, layer, overlapped, whole)
        if x.grid.on_halo:
            overlaps = x.grid.overlap and compute is overlapped and plan.interior is not None
            x.grid.on_halo(overlaps, key in x.grid.ways)
    local = compute()
    if keeps_layout and local.ndim == x.ndim:
        kept = layout(x.local)
        local = local if kept == torch.contiguous_format else local.contiguous(memory_format=kept)
    return SpatialTensor(local, x.grid, outputs, parts=x.parts)


def _by_blocks(
    x: SpatialTensor,
    plan: WindowPlan,
    operation: Operation,
    fill: float,
    ties: Sequence[Tensor],
    empty: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """Compute the interior, then the boundary, and join them."""
    inner, local = plan.interior, x.local
    # All of the interior's inputs are in the shard, except for some beyond the sample, which a
    # transposed window may need.
    boxes = [block.own for block in (inner, *plan.boundary) if block and block.own]

    def compute(slices: list[Tensor]) -> list[Piece]:
        if inner is None or inner.own is None:
            return []
        return [(inner.outputs, operation(slices[0], inner.outputs, inner.own))]

    halo = exchange_around(
        plan.exchange, x.grid.space, boxes, local, compute, overlap=x.grid.overlap
    )
    done, tie = halo.interior, halo.ties
    rest = iter(halo.slices[len(done) :])
    for slab in plan.boundary:
        own = [(slab.own, next(rest))] if slab.own else []
        block = join(slab.inputs, own + _received(plan, slab, halo.pieces), local, fill, ())
        done.append((slab.outputs, operation(block, slab.outputs, slab.inputs)))
    if len(done) == 1 and done[0][0] == plan.owned and not tie:
        return done[0][1]
    like = local
    if not done:
        # A rank without outputs: its empty shard must still have the right leading dims, and depend
        # on the same tensors as the other ranks' outputs.
        like = local if empty is None else empty(local)
        tie = [*tie, *ties, local]
    return join(plan.owned, done, like, 0.0, tie)


def _by_sums(x: SpatialTensor, plan: WindowPlan, padding: Sequence[int], linear: Linear) -> Tensor:
    """Compute the owned outputs from the shard, and add the halos' contributions."""
    exchange = plan.exchange
    if not exchange.active:
        return linear.own(x.local, padding)
    halo = exchange_around(
        exchange,
        x.grid.space,
        (exchange.shard,),
        x.local,
        lambda slices: linear.own(slices[0], padding),
        overlap=x.grid.overlap,
        whole=True,
    )
    # A slab that received nothing is at the border of the sample.
    added = [
        (slab.outputs, linear.more(join(slab.inputs, found, x.local, 0.0, ())))
        for slab in plan.boundary
        if (found := _received(plan, slab, halo.pieces))
    ]
    boxes = tuple(box for box, _ in added)
    summed: Tensor = Add.apply(
        plan.owned, boxes, halo.interior, *(part for _, part in added), *halo.ties
    )
    return summed


def _received(plan: WindowPlan, slab: Block, pieces: Sequence[Tensor]) -> list[Piece]:
    held = plan.exchange.received_boxes
    return [(part, pieces[number][index_of(part, held[number])]) for number, part in slab.received]
