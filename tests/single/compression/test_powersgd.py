"""PowerSGD between pretended nodes, each a thread: what arrives, and what is kept."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.compression.formats import parse, powersgd, wire_bytes
from hvd_ext.compression.powersgd import LowRank, Matrix, cut
from hvd_ext.errors import UsageError

ROWS, COLUMNS, RANK = 20, 33, 3
# A vector, a matrix of which a row is torn, and what is too small for factors.
ELEMENTS = [(0, 7), (16, 16 + 5 + ROWS * COLUMNS), (704, 712)]
MATRICES = [Matrix(21, ROWS, COLUMNS)]
LENGTH = 712
IN_MATRIX = slice(21, 21 + ROWS * COLUMNS)


class Nodes:
    """Nodes that add up their messages in their order."""

    def __init__(self, count, rank=RANK):
        self.shares = [np.zeros(LENGTH, np.float32) for _ in range(count)]
        self.residuals = [np.zeros(LENGTH, np.float32) for _ in range(count)]
        self._messages = [None] * count
        self._barrier = threading.Barrier(count)
        self.calls = [
            LowRank(share, residual, ELEMENTS, MATRICES, rank, count, self._summing(index))
            for index, (share, residual) in enumerate(zip(self.shares, self.residuals, strict=True))
        ]

    def _summing(self, index):
        def prepare(message):
            def call():
                self._messages[index] = message.copy()
                self._barrier.wait()
                total = self._messages[0].copy()
                for other in self._messages[1:]:
                    total += other
                self._barrier.wait()
                message[:] = total

            return call

        return prepare

    def step(self, gradients):
        for share, gradient in zip(self.shares, gradients, strict=True):
            share[:] = gradient
        threads = [threading.Thread(target=call) for call in self.calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for share in self.shares[1:]:
            assert share.tobytes() == self.shares[0].tobytes()
        return self.shares[0].copy()


def gradients(count, step=0):
    found = []
    for node in range(count):
        gradient = np.zeros(LENGTH, np.float32)
        for begin, end in ELEMENTS:
            rng = np.random.default_rng([step, node, begin])
            gradient[begin:end] = rng.standard_normal(end - begin)
        found.append(gradient)
    return found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_arrives_and_what_is_kept_add_up_to_what_was_sent(count):
    nodes = Nodes(count)
    arrived, total = np.zeros(LENGTH), np.zeros(LENGTH)
    outside = np.ones(LENGTH, bool)
    outside[IN_MATRIX] = False
    for step in range(100):
        sent = gradients(count, step)
        got = nodes.step(sent)
        in_order = sent[0].copy()
        for other in sent[1:]:
            in_order += other
        np.testing.assert_array_equal(got[outside], in_order[outside])
        arrived += got
        total += np.sum(sent, axis=0, dtype=np.float64)
    np.testing.assert_allclose(arrived + np.sum(nodes.residuals, axis=0), total, atol=2e-3)


def test_a_matrix_of_that_rank_arrives_whole():
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((ROWS, RANK)), rng.standard_normal((RANK, COLUMNS))
    gradient = np.zeros(LENGTH, np.float32)
    gradient[IN_MATRIX] = (left @ right).ravel()
    nodes, arrived = Nodes(2), np.zeros(LENGTH)
    for step in range(6):
        arrived += nodes.step([gradient / 2, gradient / 2])
        # Every second step sends what the one before has left out: it has the same rows' space.
        if step % 2:
            np.testing.assert_allclose(arrived, (step + 1) * gradient, atol=1e-3)
            assert np.abs(nodes.residuals).max() < 1e-3


def error_after(steps, forgetful):
    """Of the mean of what arrived, of a gradient that stays the same."""
    nodes, arrived = Nodes(2, rank=1), np.zeros(LENGTH)
    sent = gradients(2)
    for _ in range(steps):
        arrived += nodes.step(sent)
        for residual in nodes.residuals if forgetful else ():
            residual.fill(0.0)
    exact = np.sum(sent, axis=0, dtype=np.float64)
    return np.linalg.norm(arrived / steps - exact) / np.linalg.norm(exact)


def test_what_is_kept_arrives_later():
    assert error_after(200, forgetful=False) < 0.2
    assert error_after(200, forgetful=True) > 0.7


def test_what_is_not_finite_is_told_and_not_kept():
    nodes = Nodes(2)
    nodes.step(gradients(2))
    kept = [residual.copy() for residual in nodes.residuals]
    broken = gradients(2, 1)
    broken[1][100] = np.inf
    row = slice(21 + 2 * COLUMNS, 21 + 3 * COLUMNS)
    assert not np.isfinite(nodes.step(broken)[row]).any()
    for residual, before in zip(nodes.residuals, kept, strict=True):
        assert np.isfinite(residual).all()
        before[100] = residual[100]
        np.testing.assert_allclose(residual[row], before[row], atol=1e-5)
    assert np.isfinite(nodes.step(gradients(2, 2))).all()


def test_zeros_arrive_as_zeros():
    nodes = Nodes(2)
    for _ in range(3):
        assert not nodes.step([np.zeros(LENGTH, np.float32)] * 2).any()
    assert np.isfinite(nodes.step(gradients(2))).all()


def test_after_restart_only_the_residual_counts():
    one, other = Nodes(2), Nodes(2)
    for step in range(3):
        one.step(gradients(2, step))
    for mine, theirs in zip(one.residuals, other.residuals, strict=True):
        theirs[:] = mine
    for call in one.calls:
        call.restart()
    for step in range(3):
        assert one.step(gradients(2, step)).tobytes() == other.step(gradients(2, step)).tobytes()


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 9), st.integers(1, 4))
def test_whole_rows_are_cut(first, count, columns, rank):
    begins = [
        at for at in range(first, first + count - columns + 1) if columns and at % columns == 0
    ]
    found = cut(1000 + first, first, count, columns, rank)
    if rank < min(len(begins), columns):
        assert found == Matrix(1000 + begins[0], len(begins), columns)
    else:
        assert found is None


def test_it_is_named_by_its_rank():
    assert parse("powersgd") == powersgd() == parse("powersgd:rank=4")
    assert parse("powersgd:rank=2").name == "powersgd:rank=2"
    assert wire_bytes(powersgd(4), [(64 * 576, 576), (64, 0), (12, 3)]) == 8 * 640 + 4 * (64 + 12)
    for text in ("powersgd:rank=0", "powersgd:rank=33"):
        with pytest.raises(UsageError, match=r"rank=.*: give a whole number from 1 to 32"):
            parse(text)
    for text in ("powersgd:rank=", "powersgd:rank=x", "powersgd:4"):
        with pytest.raises(UsageError, match=r"invalid compression .*powersgd:rank=4"):
            parse(text)
