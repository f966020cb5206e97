"""Is it faster? The one answer, against known truths."""

from __future__ import annotations

import math
import random

import pytest

from hvd_ext.arithmetic.statistics import Interval, gain, lasting


def test_a_gain_is_told_from_luck():
    before = [10.0, 11.0, 9.5, 10.2, 10.4, 9.9]
    sure = gain(before, [time / 2 for time in before])
    assert sure.gained
    assert sure.estimate == pytest.approx(2)
    assert not gain(before, before[::-1]).gained
    assert not gain([10.0], [1.0]).gained


def test_an_interval_that_tells_nothing_is_not_shown_in_digits() -> None:
    assert str(Interval(0.9, 1.0, 1.25)) == "1.000 (0.900 to 1.250)"
    assert str(gain([10.0, 11.0], [4.0, 9.0])).endswith("(uncertain: too few rounds)")
    assert "inf" not in str(gain([10.0], [9.0]))


@pytest.mark.parametrize("pairs", [3, 5, 15])
def test_the_interval_holds_the_truth_as_often_as_it_says(pairs):
    source = random.Random(pairs)
    held = 0
    for _ in range(300):
        after = [math.exp(source.gauss(0, 0.2)) for _ in range(pairs)]
        found = gain([1.2 * math.exp(source.gauss(0, 0.2)) for _ in range(pairs)], after)
        held += found.low <= 1.2 <= found.high
    assert held >= 0.9 * 300


def test_what_wins_at_one_size_alone_was_lucky():
    won, faster, slower = Interval(1.1, 1.2, 1.3), Interval(0.9, 1.1, 1.3), Interval(0.7, 0.8, 0.9)
    gains = [{"a": won, "b": won}, {"a": slower, "b": faster}, {"a": won}]
    assert lasting(gains) == [{"b": 1.2}, {}, {}]
    assert lasting([{"a": won, "b": faster}]) == [{"a": 1.2}]
