"""Which gradients share a bucket: the cuts, without memory or ranks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.arena.buckets import BucketCost, choose_buckets
from hvd_ext.arena.layout import ParameterSpec, layout_buckets

MIB = 1 << 20


def specs(counts, dtypes=None):
    dtypes = dtypes or ["float32"] * len(counts)
    return [
        ParameterSpec(f"p{i}", (count,), (1,), dtype)
        for i, (count, dtype) in enumerate(zip(counts, dtypes, strict=True))
    ]


def over_s(groups, parameters, ready_s, cost):
    end = 0.0
    for group in groups:
        sizes = (parameters[i].padded_bytes for i in group)
        end = max(end, max(ready_s[i] for i in group)) + cost.time_s(sum(sizes))
    return end


def every_cut(order):
    for cuts in itertools.product((False, True), repeat=len(order) - 1):
        groups = [[order[0]]]
        for index, cut in zip(order[1:], cuts, strict=True):
            if cut:
                groups.append([])
            groups[-1].append(index)
        yield groups


gradients = st.lists(
    st.tuples(st.integers(0, 300_000), st.floats(0, 0.01), st.sampled_from(["float32", "float16"])),
    min_size=1,
    max_size=9,
)


@given(gradients, st.floats(1e-6, 1e-3), st.floats(1e-11, 1e-8))
def test_no_other_cut_is_over_much_sooner(gradients, latency_s, byte_s):
    counts, ready_s, dtypes = zip(*gradients, strict=True)
    parameters, cost = specs(counts, dtypes), BucketCost(latency_s, byte_s)
    groups = choose_buckets(parameters, ready_s, cost).groups
    order = [index for group in groups for index in group]
    assert sorted(order) == list(range(len(parameters)))
    assert [ready_s[index] for index in order] == sorted(ready_s)
    for group in groups:
        assert len({parameters[index].dtype for index in group}) == 1
    allowed = [
        other
        for other in every_cut(order)
        if all(len({dtypes[i] for i in group}) == 1 for group in other)
        and all(
            len(g) == 1
            or sum(b.message_bytes for b in layout_buckets(parameters, [g]).buckets)
            <= cost.cap_bytes
            for g in other
        )
    ]
    best_s = min(over_s(other, parameters, ready_s, cost) for other in allowed)
    last_s = max(ready_s)
    found_s = over_s(groups, parameters, ready_s, cost)
    assert found_s - last_s <= 1.05 * (best_s - last_s) + 1e-9


def test_what_is_ready_at_once_is_cut_at_the_cap_only():
    cost = BucketCost(1e-4, 1e-4 / MIB)  # the cap: 20 MiB
    groups = choose_buckets(specs([MIB // 4] * 64), [0.0] * 64, cost).groups
    assert len(groups) == 4


def test_the_last_bucket_is_short_where_gradients_trickle_in():
    cost = BucketCost(1e-3, 1e-3 / MIB)  # the cap: 20 MiB
    ready_s = [0.01 * i for i in range(32)]
    groups = choose_buckets(specs([MIB // 4] * 32), ready_s, cost).groups
    assert groups[-1] == (31,)
    assert len(groups) < 32


def test_gradients_ready_together_come_last_parameter_first():
    assert choose_buckets(specs([16] * 3), [0.0] * 3, BucketCost(1e-5, 1e-9)).groups == ((2, 1, 0),)


def test_the_reason_names_what_it_rests_on():
    reason = choose_buckets(
        specs([MIB] * 4), [0, 0.1, 0.2, 0.3], BucketCost(5e-5, 1e-3 / MIB)
    ).reason
    for part in ("4 MiB", "50 us", "1 ms a MiB", "300 ms", "after the last"):
        assert part in reason, reason


@pytest.mark.parametrize("count", [0, 1])
def test_empty_and_tiny_parameters(count):
    assert choose_buckets(specs([count]), [0.0], BucketCost(1e-5, 1e-9)).groups == ((0,),)
