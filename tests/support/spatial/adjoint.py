"""Exchanges as linear maps: <F x, y> = <x, F* y>, and the adjoint's adjoint is the map.

A pairing of split tensors is the sum over ranks, one of replicated tensors the mean: so
gradients are counted (docs/guides/spatial.md). Numbers are whole, and no sum of them rounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from hvd_ext.spatial import ProcessGrid, gather, scatter
from hvd_ext.spatial.exchange.assemble import Add, join
from hvd_ext.spatial.exchange.halo import HaloExchange
from hvd_ext.spatial.exchange.replicated import sum_over_space, to_partitioned, to_replicated
from hvd_ext.spatial.geometry.exchange_plan import Needs, plan_exchange
from hvd_ext.spatial.geometry.partition import Box, cuts, intersect_boxes, lengths, peel, product
from hvd_ext.spatial.layers.gather import fetch

LEAD = (2,)
# What a mean over 2 to 6 ranks divides stays whole.
WHOLE = 60


@dataclass(frozen=True)
class Case:
    """Parts and extents per dim, and per dim and part the intervals that it needs."""

    parts: tuple[int, ...]
    extents: tuple[int, ...]
    needed: tuple[Needs, ...]


@st.composite
def needs(draw: st.DrawFn, extent: int, parts: int) -> Needs:
    """A halo of a drawn width, which may span several shards; or any intervals at all."""
    if draw(st.booleans()):
        before, after = draw(st.integers(0, extent)), draw(st.integers(0, extent))
        bounds = cuts(extent, parts)
        return tuple(
            ((max(0, low - before), min(extent, high + after)),)
            for low, high in itertools.pairwise(bounds)
        )
    ends = st.lists(st.integers(0, extent), unique=True, max_size=4).map(sorted)
    drawn = [draw(ends) for _ in range(parts)]
    return tuple(tuple(zip(some[::2], some[1::2], strict=False)) for some in drawn)


@st.composite
def cases(draw: st.DrawFn, sizes: Sequence[int]) -> Case:
    dims = draw(st.integers(1, 3))
    counts = itertools.product(range(1, max(sizes) + 1), repeat=dims)
    parts = draw(st.sampled_from([p for p in counts if math.prod(p) in sizes]))
    extents = tuple(draw(st.integers(1, 9)) for _ in parts)
    needed = tuple(draw(needs(e, p)) for e, p in zip(extents, parts, strict=True))
    return Case(parts, extents, needed)


def numbers(shape: Sequence[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return WHOLE * torch.randint(-3, 4, tuple(shape), generator=generator).double()


def dot(ones: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    return sum(((a * b).sum() for a, b in zip(ones, others, strict=True)), torch.zeros(()).double())


def check_exchange(comm: Any, case: Case) -> None:
    """The halo exchange itself, without autograd."""
    dims = len(case.extents)
    grid = ProcessGrid(*(1,) * (3 - dims), *case.parts, comm=comm)
    here = grid.coordinates(dims)
    plan = plan_exchange(case.extents, case.needed, here)
    mine = [along[at] for along, at in zip(case.needed, here, strict=True)]
    wanted = (intersect_boxes(box, plan.shard) for box in product(mine))
    some = [plan.shard, *(box for box in wanted if box is not None)]
    for boxes, whole in ((some, False), ([plan.shard], True)):
        exchange = HaloExchange(plan, grid.space, whole=whole)
        x = numbers((*LEAD, *lengths(plan.shard)), grid.space.rank)
        slices = exchange.start(x, boxes)
        pieces = exchange.finish()
        y = [numbers(t.shape, 100 + i) for i, t in enumerate([*slices, *pieces])]
        split = len(slices)
        left = dot([*slices, *pieces], y)
        exchange.start_adjoint(x, LEAD, y[split:])
        back = exchange.finish_adjoint(x.new_zeros(()), boxes, y[:split])
        assert_equal(grid, left, dot([x], [back]))


def assert_equal(grid: ProcessGrid, left: Tensor, right: Tensor) -> None:
    sums = grid.space.allreduce(torch.stack([left, right]))
    assert sums[0] == sums[1], f"<F x, y> = {sums[0]}, <x, F* y> = {sums[1]}"


def check_map(
    grid: ProcessGrid,
    function: Callable[[Tensor], Tensor],
    shape: Sequence[int],
    *,
    from_replicated: bool = False,
    to_replicated: bool = False,
) -> None:
    """A differentiable map; what it is given and what it makes are split or replicated."""
    rank, size = grid.space.rank, grid.space.size
    x, other = (numbers(shape, seed if from_replicated else seed + rank) for seed in (0, 50))
    x.requires_grad_()
    made = function(x)
    y = numbers(made.shape, 100 + rank).requires_grad_()
    (back,) = torch.autograd.grad(made, x, y, create_graph=True)
    left, right = dot([made], [y]), dot([x], [back])
    assert_equal(
        grid,
        (left / size if to_replicated else left).detach(),
        (right / size if from_replicated else right).detach(),
    )
    # A second backward is the first one's forward.
    (again,) = torch.autograd.grad(back, y, other)
    torch.testing.assert_close(again, function(other).detach(), rtol=1e-12, atol=1e-12)


def check_maps(comm: Any, case: Case) -> None:
    """Assembled blocks, gathering, scattering, and both ways between split and replicated."""
    dims = len(case.extents)
    grid = ProcessGrid(*(1,) * (3 - dims), *case.parts, comm=comm)
    whole = (*LEAD, *case.extents)
    like = scatter(numbers(whole, 0), grid, dims)
    shard = like.local.shape
    space = grid.space
    check_map(grid, lambda x: fetch(like.like(x), case.needed), shard)
    check_map(grid, lambda x: gather(like.like(x)), shard, to_replicated=True)
    check_map(grid, lambda x: scatter(x, grid, dims).local, whole, from_replicated=True)
    check_map(grid, lambda x: sum_over_space(x, space), LEAD)
    check_map(grid, lambda x: to_partitioned(x, space), LEAD, from_replicated=True)

    def summed(x: Tensor) -> Tensor:
        return sum_over_space(to_replicated(x, space), space)

    check_map(grid, summed, LEAD, to_replicated=True)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Box, Box]:
    """A box, and one inside it, which may be empty."""
    outer, inner = [], []
    for _ in range(draw(st.integers(1, 3))):
        a, b, c, d = sorted(draw(st.lists(st.integers(-3, 9), min_size=4, max_size=4)))
        outer.append((a, d))
        inner.append((b, c))
    return tuple(outer), tuple(inner)


def check_assembling(outer: Box, inner: Box) -> None:
    """Joining pieces, and adding them, on one rank."""
    parts = [inner, *peel(outer, inner)]
    pieces = [numbers((*LEAD, *lengths(p)), i).requires_grad_() for i, p in enumerate(parts)]
    total = numbers((*LEAD, *lengths(outer)), 9).requires_grad_()
    y = numbers(total.shape, 10)
    like = torch.empty(LEAD + (0,) * len(outer)).double()
    joined = join(outer, list(zip(parts, pieces, strict=True)), like, 0.0, ())
    added = Add.apply(outer, tuple(parts), total.clone(), *pieces)
    for made, inputs in ((joined, pieces), (added, [total, *pieces])):
        back = torch.autograd.grad(made, inputs, y)
        assert dot([made], [y]) == dot(inputs, back)
