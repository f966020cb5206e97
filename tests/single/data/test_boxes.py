"""Which elements lie in which blocks of a record, against counting them one by one."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.data.packed import boxes, layout
from hvd_ext.data.packed.boxes import boxes_in_blocks, run_boxes, runs
from hvd_ext.data.packed.layout import Field
from hvd_ext.data.staging.rounds import NO_READER, readers

SHAPES = st.lists(st.integers(1, 6), max_size=4)


@given(SHAPES, st.data())
def test_the_boxes_of_a_run_are_its_elements_in_order(
    shape: list[int], data: st.DataObject
) -> None:
    count = prod(shape)
    first = data.draw(st.integers(0, count))
    end = data.draw(st.integers(0, count))
    numbers = np.arange(count).reshape(shape)
    found = [
        numbers[tuple(slice(*ends) for ends in box)].ravel() for box in run_boxes(shape, first, end)
    ]
    assert np.concatenate([[], *found]).tolist() == list(range(first, end))
    assert len(found) <= 2 * max(1, len(shape)) - 1


@given(SHAPES, st.integers(1, 4), st.sampled_from([0, 64, 320]), st.data())
def test_what_readers_have_for_a_rank_is_its_box_and_nothing_twice(
    shape: list[int], ranks: int, begin: int, data: st.DataObject
) -> None:
    field = Field("x", "array", "<f8", tuple(shape))
    drawn = [
        [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
        for _ in range(ranks)
    ]
    cuts = [tuple((first, end) for first, end in ends) for ends in drawn]
    with pytest.MonkeyPatch.context() as patch:
        for module in (boxes, layout):
            patch.setattr(module, "BLOCK_BYTES", 64)
        needs = np.array([layout.touched(field, begin, cut) for cut in cuts])
        by = readers(needs)
        assert ((by == NO_READER) == ~needs.any(axis=0)).all()
        for cut in cuts:
            seen = np.zeros(shape, int)
            for reader in range(ranks):
                for box in boxes_in_blocks(field, begin, by == reader, cut):
                    seen[tuple(slice(*ends) for ends in box)] += 1
            expected = np.zeros(shape, int)
            expected[tuple(slice(*ends) for ends in cut)] = 1
            assert np.array_equal(seen, expected)


@given(st.lists(st.booleans()))
def test_runs_are_what_is_wanted(wanted: list[bool]) -> None:
    found = runs(np.array(wanted, bool))
    assert [k for first, end in found for k in range(first, end)] == [
        k for k, w in enumerate(wanted) if w
    ]
    assert all(a < b for (_, a), (b, _) in pairwise(found))
