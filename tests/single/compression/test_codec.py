"""The codec of what travels between nodes: what arrives, and what is kept for later."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hvd_ext.compression.codec import Message, whole
from hvd_ext.compression.exchange import _plan
from hvd_ext.compression.formats import BF16, BLOCK, FORMATS, FP16, INT8, NONE, parse, wire_bytes
from hvd_ext.errors import UsageError
from hvd_ext.units import KIB

COUNTS = (0, 1, 3, 16, 255, 256, 257, 1000, 4096 + 5)


def send(x, format, residual=None, runs=None):
    """What arrives of x."""
    message = Message(0, len(x), whole(len(x), format) if runs is None else runs)
    out = np.full(message.bytes + 8, 0x5A, np.uint8)
    message.encode(x, residual, out)
    assert (out[message.bytes :] == 0x5A).all()
    arrived = np.full(len(x), 7, np.float32)
    message.decode(out, arrived, add=False)
    return arrived


def numbers(count, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 3, count)).astype(np.float32)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda f: f.name)
def test_length_and_tail(format, count):
    x = numbers(count)
    residual = np.zeros_like(x)
    arrived = send(x, format, residual)
    padded = -(-wire_bytes(format, [(count, True)]) // 4) * 4
    assert Message(0, count, whole(count, format)).bytes == padded
    largest = np.abs(x).max(initial=0)
    bound = {"none": 0, "bf16": largest / 256, "fp16": largest / 2048, "int8": largest / 253}
    assert np.abs(arrived - x).max(initial=0) <= bound[format.name]


@pytest.mark.parametrize("count", COUNTS[1:])
def test_int8_rounds_by_block_and_keeps_the_rest(count):
    x = numbers(count, 1)
    residual = numbers(count, 2) * np.float32(1e-3)
    p = x + residual
    arrived = send(x, INT8, residual)
    for begin in range(0, count, BLOCK):
        block = slice(begin, begin + BLOCK)
        assert np.abs(arrived[block] - p[block]).max() <= np.abs(p[block]).max() / 253
    np.testing.assert_array_equal(residual, p - arrived)


def test_small_whole_numbers_arrive_as_they_are():
    x = np.arange(-127, 128, dtype=np.float32)
    np.testing.assert_array_equal(send(x, INT8, np.zeros_like(x)), x)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -1e-39, 1e-37])
def test_what_is_too_small_to_scale_is_kept(value):
    x = np.full(300, value, np.float32)
    residual = np.zeros_like(x)
    arrived = send(x, INT8, residual)
    assert not arrived.any()
    np.testing.assert_array_equal(residual, x)


@pytest.mark.parametrize("count", [1, 15, 16, 17, BLOCK + 1])
def test_the_largest_numbers_stay_finite(count):
    most = np.finfo(np.float32).max
    x = np.resize(np.array([most, -most, 1e-45, 0], np.float32), count)
    residual = np.zeros_like(x)
    assert np.isfinite(send(x, INT8, residual)).all()
    assert np.isfinite(residual).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_arrives_as_nan_and_keeps_what_it_had(value):
    x = numbers(3 * BLOCK)
    x[BLOCK + 3] = value
    residual = np.full_like(x, 0.5)
    residual[BLOCK + 7] = np.inf
    arrived = send(x, INT8, residual)
    assert np.isnan(arrived[BLOCK : 2 * BLOCK]).all()
    assert np.isfinite(np.delete(arrived, np.s_[BLOCK : 2 * BLOCK])).all()
    kept = np.full(BLOCK, 0.5, np.float32)
    kept[7] = 0
    np.testing.assert_array_equal(residual[BLOCK : 2 * BLOCK], kept)


@pytest.mark.parametrize("format", [BF16, FP16])
def test_halves_round_as_torch_does(format):
    import torch

    x = np.concatenate([numbers(5000), [np.nan, np.inf, -np.inf, 1e-8, 6e4]]).astype(np.float32)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[format.name]
    expected = torch.from_numpy(x).to(dtype).float().numpy()
    np.testing.assert_array_equal(send(x, format), expected)


def test_runs_have_formats_of_their_own_and_gaps_are_left_alone():
    x = numbers(1000)
    runs = [(0, 300, INT8), (304, 10, NONE), (320, 600, INT8)]
    residual = np.zeros_like(x)
    arrived = send(x, INT8, residual, runs)
    np.testing.assert_array_equal(arrived[304:314], x[304:314])
    assert (arrived[300:304] == 7).all()
    # No block reaches from one run into the next: each has the scale of its own elements.
    for begin, count, format in runs:
        if format is INT8:
            alone = send(x[begin : begin + count], INT8, np.zeros(count, np.float32))
            np.testing.assert_array_equal(arrived[begin : begin + count], alone)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8),
    st.lists(st.integers(0, 300), min_size=2, max_size=2).map(sorted),
)
@example([0, 18, 40, 40, 40, 40, 40], [0, 220])
def test_any_part_of_any_runs(lengths, bounds):
    runs, end = [], 0
    for index, length in enumerate(lengths):
        runs.append((end, length, (INT8, NONE, BF16)[index % 3]))
        end += length + index % 2
    begin, stop = (min(bound, end) for bound in bounds)
    x = numbers(end)
    message = Message(begin, stop, runs)
    out = np.zeros(message.bytes, np.uint8)
    message.encode(x[begin:stop], np.zeros(stop - begin, np.float32), out)
    total = np.zeros(stop - begin, np.float32)
    message.decode(out, total, add=True)
    message.decode(out, total, add=True)
    covered = np.zeros(end, bool)
    for first, length, _ in runs:
        covered[first : first + length] = True
    assert not total[~covered[begin:stop]].any()
    # Twice, and each time off by half a step of int8 at most: a 127th of the largest number.
    step = np.abs(x).max(initial=0) / 127
    want = 2 * np.where(covered, x, 0)[begin:stop]
    np.testing.assert_allclose(total, want, rtol=0.02, atol=1.01 * step)


def test_nothing_is_lost_over_many_steps():
    steps = [numbers(700, seed) for seed in range(100)]
    residual = np.zeros(700, np.float32)
    arrived = sum(send(x, INT8, residual).astype(np.float64) for x in steps)
    total = sum(x.astype(np.float64) for x in steps)
    np.testing.assert_allclose(arrived + residual, total, rtol=1e-5, atol=1e-2)
    # Without what is kept, the error grows with the number of steps.
    forgetful = sum(send(x, INT8, np.zeros_like(x)).astype(np.float64) for x in steps)
    assert np.abs(forgetful - total).max() > 3 * np.abs(arrived - total).max()


def test_a_name_is_looked_up():
    assert parse("int8") is INT8
    assert parse("auto") is None
    with pytest.raises(UsageError, match="invalid compression 'int4': use one of none, bf16"):
        parse("int4")


@pytest.mark.parametrize("format", [NONE, BF16, FP16, INT8])
def test_what_is_scaled_first_and_while_it_is_encoded_is_the_same(format):
    x = np.random.default_rng(5).standard_normal(1000).astype(np.float32)
    scale = np.float32(1 / 3)
    message = Message(0, len(x), whole(len(x), format))
    sent = []
    for first, then in ((x * scale, 1.0), (x, float(scale))):
        residual, out = np.full(len(x), 0.01, np.float32), np.zeros(message.bytes, np.uint8)
        message.encode(first, residual, out, then)
        sent.append((out.tobytes(), residual.tobytes()))
    assert sent[0] == sent[1]


@pytest.mark.parametrize("format", [BF16, INT8])
def test_messages_are_short(format):
    pieces = _plan(10_000_003, 4, whole(10_000_003, format))
    longest = max(message.bytes for piece in pieces for message in piece)
    assert 64 * KIB < longest <= 129 * KIB
