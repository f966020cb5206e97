"""The arena's layout, without memory or ranks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.arena.layout import (
    ParameterSpec,
    digest,
    first_difference,
    layout_by_size,
    parts,
)
from hvd_ext.dtypes import DTYPES
from hvd_ext.shm.layout import LINE_BYTES, shard

specs = st.lists(
    st.builds(
        lambda index, count, dtype: ParameterSpec(f"p{index}", (count,), (1,), dtype),
        st.integers(0, 10**6),
        st.integers(0, 5000),
        st.sampled_from(sorted(DTYPES)),
    ),
    max_size=40,
)


@given(specs, st.integers(1, 20000))
def test_every_gradient_has_its_own_memory(parameters, bucket_bytes):
    plan = layout_by_size(parameters, bucket_bytes)
    slots = [slot for bucket in plan.buckets for slot in bucket.spans]
    assert sorted(slot.parameter for slot in slots) == list(range(len(parameters)))
    ends = 0
    for bucket in plan.buckets:
        assert bucket.offset_bytes == ends  # no gaps between buckets
        ends = bucket.offset_bytes + bucket.message_bytes
        at = bucket.offset_bytes
        for slot in bucket.spans:
            parameter = parameters[slot.parameter]
            assert parameter.dtype == bucket.dtype
            assert slot.count == parameter.count
            assert slot.offset_bytes % LINE_BYTES == 0
            assert slot.offset_bytes >= at
            at = slot.offset_bytes + slot.count * DTYPES[bucket.dtype].item_bytes
        assert at <= ends
        assert len(bucket.spans) == 1 or bucket.message_bytes <= bucket_bytes
    assert plan.total_bytes == ends


def test_the_last_parameter_comes_first():
    parameters = [ParameterSpec(f"p{i}", (16,), (1,), "float32") for i in range(3)]
    (bucket,) = layout_by_size(parameters, 1 << 20).buckets
    assert [slot.parameter for slot in bucket.spans] == [2, 1, 0]


@pytest.mark.parametrize("item_bytes", [2, 4, 8])
def test_shares_cover_a_bucket_once_and_share_no_line(item_bytes):
    line = LINE_BYTES // item_bytes
    for count, size in itertools.product(range(200), range(1, 9)):
        bounds = [shard(count, size, rank, item_bytes) for rank in range(size)]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == count
        for (_, end), (begin, _) in itertools.pairwise(bounds):
            assert end == begin
            assert end % line == 0 or end == count
        lengths = [end - begin for begin, end in bounds]
        assert max(lengths) - min(lengths) <= 2 * line


def test_a_digest_tells_plans_apart():
    a = ParameterSpec("w", (3, 4), (4, 1), "float32")
    others = [
        ParameterSpec("v", (3, 4), (4, 1), "float32"),
        ParameterSpec("w", (4, 3), (3, 1), "float32"),
        ParameterSpec("w", (3, 4), (1, 3), "float32"),
        ParameterSpec("w", (3, 4), (4, 1), "float64"),
    ]
    digests = {digest([p], 1024) for p in [a, *others]} | {digest([a], 2048), digest([a, a], 1024)}
    assert len(digests) == 7
    for other in others:
        ours, theirs = first_difference([a], [other]) or ("", "")
        assert ours != theirs
    assert first_difference([a], [a]) is None
    assert first_difference([a, others[0]], [a]) is not None


@given(specs, st.integers(1, 20000), st.integers(1, 9))
def test_every_element_is_a_part_of_one_shard(parameters, bucket_bytes, ranks):
    for bucket in layout_by_size(parameters, bucket_bytes).buckets:
        item = DTYPES[bucket.dtype].item_bytes
        ends = dict.fromkeys(bucket.spans, 0)
        for rank in range(ranks):
            begin, end = (
                bucket.offset_bytes + item * at for at in shard(bucket.count, ranks, rank, item)
            )
            for span, first, last in parts(bucket, (begin, end)):
                assert first == ends[span] < last
                assert begin <= span.offset_bytes + item * first
                assert span.offset_bytes + item * last <= end
                ends[span] = last
        assert all(ends[span] == span.count for span in bucket.spans)
