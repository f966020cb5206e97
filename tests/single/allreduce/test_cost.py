"""The cost formulas and their fit, against known parameters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_ext.allreduce.algorithms import cost
from hvd_ext.allreduce.cost import (
    FORMULAS,
    Measurement,
    Rates,
    fit,
    leave_one_out,
    work,
)
from hvd_ext.allreduce.work import Work
from hvd_ext.errors import UsageError

SIZES = [4**i for i in range(1, 14)]
TRUE = Rates(1.5e-6, 2e-10, 7e-11)


def measured(rates, algorithms=FORMULAS, ranks=(2, 4, 7), noise=0.0, seed=0):
    generator = np.random.default_rng(seed)
    return [
        Measurement(
            name, p, n, rates.time_s(work(name, p, n)) * (1 + noise * generator.uniform(-1, 1))
        )
        for name, p, n in itertools.product(algorithms, ranks, SIZES)
    ]


@pytest.mark.parametrize("algorithm", FORMULAS)
def test_every_algorithm_but_the_librarys_own_has_a_formula(algorithm):
    assert cost(algorithm)(1, 800) == Work(0, 0, 0)
    assert cost(algorithm)(2, 800).sent_bytes >= 800


@pytest.mark.parametrize(
    ("algorithm", "size", "expected"),
    [
        ("ring", 4, Work(6, 1200, 600)),
        ("recursive_doubling", 4, Work(2, 1600, 1600)),
        ("recursive_doubling", 5, Work(4, 3200, 2400)),
        ("rabenseifner", 4, Work(4, 1200, 600)),
        ("rabenseifner", 5, Work(6, 2800, 1400)),
        ("tree", 5, Work(6, 4800, 2400)),
        ("double_tree", 2, Work(2, 1600, 800)),
    ],
)
def test_formulas_for_800_bytes(algorithm, size, expected):
    assert work(algorithm, size, 800) == expected


@given(st.sampled_from(sorted(FORMULAS)), st.integers(1, 5000), st.integers(0, 2**40))
def test_no_algorithm_sends_less_than_it_must(algorithm, size, message_bytes):
    done = work(algorithm, size, message_bytes)
    assert done.reduced_bytes >= (1 - 1 / size) * message_bytes * (1 - 1e-9) - 1e-9 or (
        # Folding counts what the partner does at the same time once.
        size & (size - 1)
    )
    assert done.messages >= (size - 1).bit_length()
    if size == 1:
        assert done == Work(0, 0, 0)


def test_known_rates_are_found_again():
    found = fit(measured(TRUE))
    for name in ("latency_s", "byte_s", "reduction_s"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    assert leave_one_out(measured(TRUE)).worst < 1e-6


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-7, 1e-3), st.floats(0, 1e-7), st.floats(0, 1e-8), st.integers(0, 99))
def test_noise_moves_a_prediction_by_no_more_than_itself(latency, byte, reduction, seed):
    true = Rates(latency, byte, reduction)
    found = fit(measured(true, noise=0.05, seed=seed))
    assert min(found.latency_s, found.byte_s, found.reduction_s) >= 0
    for p, n in itertools.product((16, 64), (4, 10**5, 10**8)):
        for name in FORMULAS:
            exact = true.time_s(work(name, p, n))
            assert found.time_s(work(name, p, n)) == pytest.approx(exact, rel=0.2)


def test_one_algorithm_predicts_its_other_sizes():
    # Bytes sent and combined are proportional here: the sum counts.
    points = measured(TRUE, ["ring"], [4], noise=0.02)
    error = leave_one_out(points)
    assert error.median < 0.05
    assert error.worst < 0.2


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_measurements(count):
    with pytest.raises(UsageError, match="measurements"):
        leave_one_out(measured(TRUE)[:count])


def test_what_cannot_be_computed_is_refused():
    with pytest.raises(UsageError, match="'native' has no formula"):
        work("native", 2, 4)
    with pytest.raises(UsageError, match="0 ranks"):
        work("ring", 0, 4)
    with pytest.raises(UsageError, match="more than 0 s"):
        fit([Measurement("ring", 2, 4, 0.0)])
