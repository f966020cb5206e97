"""The fit of latency and bandwidth, against known parameters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_ext.arithmetic.allreduce_work import FORMULAS, work
from hvd_ext.errors import UsageError
from hvprof.analysis.replay.rates import Rates, fit

SIZES = [4**i for i in range(1, 14)]
TRUE = Rates(1.5e-6, 2e-10, 7e-11)


def fitted(rates, algorithms=FORMULAS, ranks=(2, 4, 7), noise=0.0, seed=0):
    generator = np.random.default_rng(seed)
    works = [work(*case) for case in itertools.product(algorithms, ranks, SIZES)]
    return fit(works, [rates.time_s(one) * (1 + noise * generator.uniform(-1, 1)) for one in works])


def test_known_rates_are_found_again():
    found = fitted(TRUE)
    for name in ("latency_s", "byte_s", "reduction_s"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-7, 1e-3), st.floats(0, 1e-7), st.floats(0, 1e-8), st.integers(0, 99))
def test_noise_moves_a_prediction_by_no_more_than_itself(latency, byte, reduction, seed):
    true = Rates(latency, byte, reduction)
    found = fitted(true, noise=0.05, seed=seed)
    assert min(found.latency_s, found.byte_s, found.reduction_s) >= 0
    for case in itertools.product(FORMULAS, (16, 64), (4, 10**5, 10**8)):
        assert found.time_s(work(*case)) == pytest.approx(true.time_s(work(*case)), rel=0.2)


def test_one_algorithm_predicts_its_other_sizes():
    # Bytes sent and combined are proportional here: the sum counts.
    found = fitted(TRUE, ["ring"], [4], noise=0.02)
    for size in SIZES:
        done = work("ring", 4, size // 2)
        assert found.time_s(done) == pytest.approx(TRUE.time_s(done), rel=0.2)


@pytest.mark.parametrize("times_s", [[], [0.0]])
def test_a_fit_without_times_is_refused(times_s):
    with pytest.raises(UsageError, match="more than 0 s"):
        fit([work("ring", 2, 4)] * len(times_s), times_s)
