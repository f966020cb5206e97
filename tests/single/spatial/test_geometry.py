"""The index arithmetic of spatial layers, exhaustively, against definitions; no torch, no MPI."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from hvd_ext.spatial.geometry.exchange_plan import plan_exchange
from hvd_ext.spatial.geometry.partition import (
    coordinates_of,
    cuts,
    intersect_boxes,
    lengths,
    peel,
    position,
)
from hvd_ext.spatial.geometry.windows import (
    Explicit,
    Sliding,
    Transposed,
    interior,
    needs,
    transfers,
)

PARTS = range(1, 6)


def configurations() -> Iterator[tuple[int, int, int, int, int]]:
    """Extent, kernel, stride, padding, dilation."""
    for kernel in range(1, 8):
        yield from itertools.product(
            range(1, 17), (kernel,), range(1, 5), range(kernel + 1), range(1, 4)
        )


def sliding_outputs(
    window: Sliding, extent: int, padding_after: int, ceil_mode: bool = False
) -> int:
    """Number of outputs; not positive where the window does not fit."""
    free = extent + window.padding + padding_after - window.span
    count = (-(-free // window.stride) if ceil_mode else free // window.stride) + 1
    # A window may hang over the end, but not start beyond it.
    if ceil_mode and (count - 1) * window.stride >= extent + window.padding:
        count -= 1
    return count


def check_parts(
    window: Sliding | Transposed,
    outputs: int,
    extent: int,
    inputs_of: list[list[int]],
    taps: list[list[int]] | None,
) -> None:
    """Each output's inputs arrive, once, from their owner; the interior is all it can be."""
    for parts in PARTS:
        owned, shards = cuts(outputs, parts), cuts(extent, parts)
        needed = needs(window, outputs, extent, parts)
        table = transfers(needed, extent)
        for to in range(parts):
            begin, end = owned[to], owned[to + 1]
            # What arrives is what is needed, in order, each cell from the shard it is in.
            arrived = [cell for low, high in table[to] for cell in range(low, high)]
            assert arrived == list(range(*needed[to]))
            for of, (low, high) in enumerate(table[to]):
                assert low == high or shards[of] <= low < high <= shards[of + 1]
            wanted = {cell for output in range(begin, end) for cell in inputs_of[output]}
            assert wanted <= set(arrived)
            if taps and begin < end:
                # From the first tap of the first output to the last one of the last.
                low, high = taps[begin][0], taps[end - 1][-1]
                assert arrived == [cell for cell in range(low, high + 1) if 0 <= cell < extent]
            shard = (shards[to], shards[to + 1])
            first, last = interior(window, (begin, end), shard, extent)
            for output in range(begin, end):
                near = all(shard[0] <= cell < shard[1] for cell in inputs_of[output])
                if first <= output < last:
                    assert near
                    assert not taps or all(0 <= tap < extent for tap in taps[output])
                elif taps and shard[0] < shard[1]:
                    assert taps[output][0] < shard[0] or taps[output][-1] >= shard[1]


def test_convolution_and_pooling_everywhere() -> None:
    count = 0
    for extent, kernel, stride, padding, dilation in configurations():
        window = Sliding(kernel, stride, padding, dilation)
        for ceil_mode in (False, True):
            # Pooling takes no more padding than half its window, nor ceil_mode else.
            if ceil_mode and padding > kernel // 2:
                continue
            outputs = sliding_outputs(window, extent, padding, ceil_mode)
            if outputs < 1:
                continue
            taps = [
                [output * stride - padding + dilation * tap for tap in range(kernel)]
                for output in range(outputs)
            ]
            inside = [[cell for cell in cells if 0 <= cell < extent] for cells in taps]
            check_parts(window, outputs, extent, inside, taps)
            count += len(PARTS)
    assert count > 39_000


def test_zeros_around_a_shard_make_just_what_is_owned() -> None:
    found = 0
    for extent, kernel, stride, padding, dilation in configurations():
        window = Sliding(kernel, stride, padding, dilation)
        outputs = sliding_outputs(window, extent, padding)
        for parts in PARTS if outputs >= 1 else ():
            owned, shards = cuts(outputs, parts), cuts(extent, parts)
            for mine, shard in zip(
                itertools.pairwise(owned), itertools.pairwise(shards), strict=True
            ):
                zeros = window.padding_of(shard, mine)
                if stride == 1 and 2 * padding == window.span - 1 and shard[0] < shard[1]:
                    # What keeps the extent can always be padded.
                    assert zeros == padding
                if zeros is None or mine[0] == mine[1]:
                    continue
                found += 1
                # By the definition of a padded window over the shard alone.
                alone = Sliding(kernel, stride, zeros, dilation)
                assert sliding_outputs(alone, shard[1] - shard[0], zeros) == mine[1] - mine[0]
                assert shard[0] + alone.input_range((0, 1))[0] == window.input_range(mine)[0]
    assert found > 20_000


def test_transposed_convolution_is_the_transpose() -> None:
    count = 0
    for extent, kernel, stride, padding, dilation in configurations():
        window = Transposed(kernel, stride, padding, dilation)
        output_padding = (extent + kernel) % max(stride, dilation)
        outputs = (extent - 1) * stride - 2 * padding + window.span + output_padding
        if outputs < 1:
            continue
        # The pairs (input, output) of the convolution that it is the transpose of.
        heard: list[list[int]] = [[] for _ in range(outputs)]
        for cell in range(extent):
            for tap in range(kernel):
                output = cell * stride - padding + dilation * tap
                if 0 <= output < outputs:
                    heard[output].append(cell)
        check_parts(window, outputs, extent, heard, None)
        count += len(PARTS)
    assert count > 20_000


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_halo_of_half_the_kernel_would_be_wrong(stride: int) -> None:
    """What makes the rule worth having: with a stride, uneven cuts need other cells."""
    wrong = 0
    for extent, parts, kernel in itertools.product(range(4, 17), (2, 3), (3, 5)):
        window = Sliding(kernel, stride, kernel // 2)
        shards = cuts(extent, parts)
        usual = tuple(
            (max(0, shards[i] - kernel // 2), min(extent, shards[i + 1] + kernel // 2))
            for i in range(parts)
        )
        outputs = sliding_outputs(window, extent, kernel // 2)
        true = needs(window, outputs, extent, parts)
        wrong += any(
            low < mine or high > yours
            for (low, high), (mine, yours) in zip(true, usual, strict=True)
        )
    assert (wrong > 0) == (stride > 1)


def test_the_partition_is_balanced_and_lines_up() -> None:
    for extent, parts in itertools.product(range(65), range(1, 10)):
        bounds = cuts(extent, parts)
        sizes = [high - low for low, high in itertools.pairwise(bounds)]
        assert bounds[0] == 0
        assert bounds[-1] == extent
        assert max(sizes) - min(sizes) <= 1
        doubled = cuts(2 * extent, parts)
        assert all(0 <= twice - 2 * once <= 1 for once, twice in zip(bounds, doubled, strict=True))


def test_peeling_leaves_nothing_and_nothing_twice() -> None:
    for core in itertools.product(*[[(a, b) for a in range(4) for b in range(a, 4)]] * 2):
        box = ((0, 3), (0, 3))
        slabs = peel(box, core)
        whole = [core] if intersect_boxes(core, box) else []
        cells = [
            cell
            for slab in (*slabs, *whole)
            for cell in itertools.product(*(range(*interval) for interval in slab))
        ]
        assert sorted(cells) == sorted(itertools.product(range(3), range(3)))


@pytest.mark.parametrize(
    ("extents", "parts", "radius"),
    [((7,), (3,), 1), ((2,), (5,), 4), ((5, 6), (2, 3), 1), ((3, 4, 5), (2, 2, 2), 2)],
)
def test_messages_have_two_ends_and_corners_go_straight(
    extents: tuple[int, ...], parts: tuple[int, ...], radius: int
) -> None:
    window = Sliding(2 * radius + 1, 1, radius)
    needed = tuple(
        tuple((interval,) for interval in needs(window, extent, extent, count))
        for extent, count in zip(extents, parts, strict=True)
    )
    places = list(itertools.product(*map(range, parts)))
    plans = {position(parts, place): plan_exchange(extents, needed, place) for place in places}
    for rank, plan in plans.items():
        assert coordinates_of(parts, rank) == places[rank]
        received = dict(plan.receives)
        assert rank not in received
        for peer, other in plans.items():
            assert dict(other.sends).get(rank) == received.get(peer)
        # Own shard and received boxes fill what is needed, once.
        mine = tuple(dim[at][0] for dim, at in zip(needed, places[rank], strict=True))
        kept = intersect_boxes(mine, plan.shard)
        boxes = [*plan.received_boxes, *([kept] if kept else [])]
        volume = sum(_volume(box) for box in boxes)
        assert volume == _volume(mine)
    assert all(plan.active for plan in plans.values())


def _volume(box: tuple[tuple[int, int], ...]) -> int:
    volume = 1
    for length in lengths(box):
        volume *= length
    return volume


def test_a_listed_window_knows_its_interior() -> None:
    window = Explicit((0, 0, 1, 3), (1, 2, 3, 5))
    assert window.input_range((1, 3)) == (0, 3)
    assert window.inside((0, 3), 5) == (0, 3)
    assert window.inside((1, 2), 5) == (0, 0)
