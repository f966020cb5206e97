"""A share's sum over the nodes in each format: the same bits everywhere, and nothing lost."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_ext.allreduce.algorithms import direct
from hvd_ext.compression import codec, exchange
from hvd_ext.compression.codec import whole
from hvd_ext.compression.exchange import prepare_coded, prepare_half
from hvd_ext.compression.formats import BF16, INT8, NONE
from tests.ranks.asserts import assert_same_bits, parallel_assert

COUNTS = (1, 15, 16, 17, 1000, 100_003)
FOUR = pytest.param(4, marks=pytest.mark.long)


@pytest.fixture
def short_pieces(monkeypatch):
    """So that a short share has many."""
    monkeypatch.setattr(direct, "count_pieces", lambda size, n, *most: max(1, n // (4096 * size)))


def gradients(comm, count, step=0):
    """Of every rank."""
    return [
        np.random.default_rng([step, rank]).standard_normal(count).astype(np.float32)
        for rank in range(comm.size)
    ]


def runs_of(count):
    """Two matrices, and between them something short that travels as it is."""
    first = count // 3
    short = min(16, count - first)
    rest = count - first - short
    runs = [(0, first, INT8), (first, short, NONE), (first + short, rest, INT8)]
    return [run for run in runs if run[1]]


@pytest.mark.ranks(pytest.param(1, marks=pytest.mark.long), 2, 3, FOUR)
@pytest.mark.parametrize("count", COUNTS)
def test_int8(comm, short_pieces, count):
    check_int8(comm, count)


def check_int8(comm, count):
    share, residual = np.zeros(count, np.float32), np.zeros(count, np.float32)
    call = prepare_coded(comm, share, runs_of(count), residual)
    arrived = np.zeros(count)
    total = np.zeros(count)
    for step in range(100 if count < 10_000 else 20):
        everybodys = gradients(comm, count, step)
        share[:] = everybodys[comm.rank]
        call()
        assert_same_bits(comm, share)
        arrived += share
        total += np.sum(everybodys, axis=0, dtype=np.float64)
        exact = slice(count // 3, count // 3 + min(16, count - count // 3))
        in_order = everybodys[0].copy()
        for term in everybodys[1:]:
            in_order += term
        parallel_assert(comm, np.array_equal(share[exact], in_order[exact]))
    kept = np.sum(comm.allgather(residual), axis=0, dtype=np.float64)
    np.testing.assert_allclose(arrived + kept, total, rtol=1e-4, atol=1e-3)


@pytest.mark.ranks(2, 3, FOUR)
@pytest.mark.parametrize("count", COUNTS)
def test_bf16_is_rounded_twice_wherever_an_element_lies(comm, short_pieces, count):
    from_torch = pytest.importorskip("torch")

    def rounded(x):
        return from_torch.from_numpy(x).bfloat16().float().numpy()

    everybodys = gradients(comm, count)
    share = everybodys[comm.rank].copy()
    prepare_coded(comm, share, whole(count, BF16), None)()
    expected = rounded(everybodys[0])
    for term in everybodys[1:]:
        expected = expected + rounded(term)
    parallel_assert(comm, np.array_equal(share, rounded(expected)))


@pytest.mark.ranks(2, 3, FOUR)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("count", COUNTS)
def test_halves_are_added_in_32_bits_and_rounded_once(comm, short_pieces, dtype, count):
    import torch

    kind = getattr(torch, dtype)
    everybodys = [torch.from_numpy(x).to(kind) for x in gradients(comm, count)]
    expected = everybodys[0].float()
    for term in everybodys[1:]:
        expected = expected + term.float()
    own = everybodys[comm.rank].clone()
    share = own.view(torch.uint16).numpy() if dtype == "bfloat16" else own.numpy()
    prepare_half(comm, share, dtype)()
    parallel_assert(comm, torch.equal(own, expected.to(kind)))


@pytest.mark.ranks(3)
def test_what_is_not_finite_arrives_everywhere_as_nan(comm, short_pieces):
    check_not_finite(comm, 3000)


def check_not_finite(comm, count):
    share = np.ones(count, np.float32)
    if comm.rank == 1:
        share[7] = np.inf
    prepare_coded(comm, share, whole(count, INT8), np.zeros_like(share))()
    parallel_assert(comm, np.isnan(share[:256]).all() and np.isfinite(share[256:]).all())
    assert_same_bits(comm, share)


def without_the_owners_rounding(monkeypatch):
    """The owner keeps the sum as it had it, the others decode it."""
    monkeypatch.setattr(exchange._Coded, "result", _unrounded)


def without_residual(monkeypatch):
    monkeypatch.setattr(
        exchange._Coded,
        "_kept",
        lambda self, message: np.zeros(exchange._length(message), np.float32),
    )


def without_the_owners_residual(monkeypatch):
    """What the owner's rounding of the sum leaves is dropped."""
    result = exchange._Coded.result

    def forgetful(self, piece):
        kept = self._residual.copy()
        out = result(self, piece)
        self._residual[self._own(piece).elements] = kept[self._own(piece).elements] * 0
        return out

    monkeypatch.setattr(exchange._Coded, "result", forgetful)


def without_infinity(monkeypatch):
    """What is not finite is taken for 0."""
    encode = codec.Message.encode
    monkeypatch.setattr(
        codec.Message,
        "encode",
        lambda self, x, *rest: encode(self, np.nan_to_num(x, posinf=0), *rest),
    )


def _unrounded(self, piece):
    own = self._own(piece)
    out = self._slot("results", piece, self._rank)[: own.bytes]
    own.encode(self._sum(piece), self._kept(own), out)
    self._share[own.elements] = self._sum(piece)
    return out


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "mutant",
    [without_the_owners_rounding, without_residual, without_the_owners_residual, without_infinity],
)
def test_mutants_are_found(comm, monkeypatch, mutant):
    mutant(monkeypatch)
    check = check_not_finite if mutant is without_infinity else check_int8
    with pytest.raises(AssertionError):
        check(comm, 3000)
