"""Comparing: what chance alone must not show, what must be found, and the gate."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hvd_ext.errors import UsageError
from hvprof.analysis.comparison.bootstrap import (
    FASTER,
    NO_EVIDENCE,
    SLOWER,
    Method,
    Sample,
    weigh,
)
from hvprof.analysis.comparison.comparison import Comparison, compare
from hvprof.analysis.comparison.inputs import RecordedRun
from hvprof.analysis.comparison.regression import check
from hvprof.analysis.comparison.step_blocks import _warm_up as leading_slow
from hvprof.analysis.comparison.step_blocks import step_blocks
from hvprof.analysis.summary import BLOCKS, Row
from hvprof.model import RankRecording, Recording, Step
from hvprof.reporters.comparison import notes, render

PAIRS = 100
# 5 % of the simulated comparisons, and three standard deviations of their number by chance.
MOST_OF_PAIRS = 11
MANY, MOST_OF_MANY = 1000, 71
LABELS = ("1-128 KB", "128 KB-16 MB", "16-32 MB", "32-64 MB", "64-128 MB")


def run_with(times_s: np.ndarray, blocks: np.ndarray | None = None) -> RecordedRun:
    """A run of 2 ranks with 10 MB in each of the first rows of the table."""
    rows = [
        Row(
            operation="allreduce",
            algorithm="native",
            size=2,
            message_size=label,
            calls=20,
            calls_min=10,
            calls_max=10,
            message_bytes=20_000_000,
            time_s=float(time_s),
            time_max_s=float(time_s),
            wait_s=None,
            avg_s=float(time_s) / 10,
            min_s=0.0,
            max_s=float(time_s),
            algbw_gb_s=1.0,
            busbw_gb_s=1.0,
            p50_s=None,
            p99_s=None,
            blocks_s=() if blocks is None else tuple(map(float, blocks[place])),
        )
        for place, (label, time_s) in enumerate(zip(LABELS, times_s, strict=False))
    ]
    return RecordedRun("run", 2, tuple(rows))


def noisy_runs(
    generator: np.random.Generator, count: int, kind: str, speed: float = 1.0
) -> list[RecordedRun]:
    """Runs whose rows differ by chance: each alone, and all of a run together."""
    runs = []
    for _ in range(count):
        if kind == "lognormal":
            noise = np.exp(generator.normal(0, 0.02, 5) + generator.normal(0, 0.02))
        elif kind == "skewed":
            noise = 1 + generator.exponential(0.04, 5)
        else:  # now and then a run that something else disturbed
            noise = np.exp(generator.normal(0, 0.02, 5)) * (1.5 if generator.random() < 0.1 else 1)
        runs.append(run_with(speed * np.array([0.02, 0.2, 0.3, 0.5, 0.1]) * noise))
    return runs


def verdicts(comparison: Comparison) -> set[str]:
    return {row.verdict for row in (*comparison.rows, comparison.total)}


@pytest.mark.parametrize(
    ("kind", "runs"),
    [("lognormal", 2), ("skewed", 3), ("disturbed", 8), ("lognormal", 20), ("skewed", 20)],
)
def test_equal_sides_give_no_evidence(kind: str, runs: int) -> None:
    generator = np.random.default_rng(runs)
    found = [
        compare(noisy_runs(generator, runs, kind), noisy_runs(generator, runs, kind))
        for _ in range(PAIRS)
    ]
    # The rows together err as seldom as the total.
    assert sum(one.total.verdict != NO_EVIDENCE for one in found) <= MOST_OF_PAIRS
    rows = [{row.verdict for row in one.rows} for one in found]
    assert sum(of_one != {NO_EVIDENCE} for of_one in rows) <= MOST_OF_PAIRS


def samples(logs: np.ndarray) -> list[Sample]:
    return [Sample(np.array([np.exp(log)]), np.ones(1)) for log in logs]


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("runs", [2, 3, 5, 10])
def test_equal_runs_get_a_verdict_in_five_percent(runs: int, spread: float) -> None:
    generator = np.random.default_rng(runs)
    found = [
        weigh(*(samples(generator.normal(0, spread, runs)) for _ in range(2))).verdict
        for _ in range(MANY)
    ]
    assert sum(verdict != NO_EVIDENCE for verdict in found) <= MOST_OF_MANY


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_pairs_see_through_a_machine_that_drifts(runs: int) -> None:
    generator = np.random.default_rng(runs)

    def verdicts_of(effect: float, method: Method | None) -> list[str]:
        drifts = (generator.normal(0, 0.3, runs) for _ in range(MANY))
        return [
            weigh(
                samples(drift + generator.normal(0, 0.02, runs)),
                samples(drift + generator.normal(-effect, 0.02, runs)),
                method,
            ).verdict
            for drift in drifts
        ]

    equal = verdicts_of(0.0, Method(paired=True))
    assert sum(verdict != NO_EVIDENCE for verdict in equal) <= MOST_OF_MANY
    assert verdicts_of(0.2, Method(paired=True)).count(FASTER) > 0.9 * MANY
    assert verdicts_of(0.2, None).count(FASTER) < 0.5 * MANY


def started(runs: list[RecordedRun], starts: list[float]) -> list[RecordedRun]:
    return [
        dataclasses.replace(run, start_unix_s=start)
        for run, start in zip(runs, starts, strict=True)
    ]


@pytest.mark.parametrize(
    ("starts", "pairs"),
    [
        (([1, 3, 5, 7], [2, 4, 6, 8]), 4),
        (([1, 4, 5, 8], [2, 3, 6, 7]), 4),
        (([8, 5, 4, 1], [2, 3, 6, 7]), 4),
        (([1, 2, 3, 4], [5, 6, 7, 8]), 0),
        (([1, 3, 5, 0], [2, 4, 6, 8]), 0),
        (([1, 3], [2, 4]), 0),
        (([1, 3, 5, 7], [2, 4, 6]), 0),
    ],
    ids=["alternate", "reversed", "any order", "apart", "unknown start", "few", "uneven"],
)
def test_runs_recorded_alternately_are_pairs(
    starts: tuple[list[float], list[float]], pairs: int
) -> None:
    # A job that is 1.59 times as fast, on a machine whose speed is another for each pair.
    drifts = [1.0, 2.5, 0.8, 1.7]

    def side(speed: float, at: list[float]) -> list[RecordedRun]:
        pace = [drifts[int(start - 1) // 2] if start else 1.0 for start in at]
        noise = np.exp(np.random.default_rng(int(speed * 100)).normal(0, 0.02, len(at)))
        return started(
            [
                run_with(one * even / speed * np.ones(5))
                for one, even in zip(pace, noise, strict=True)
            ],
            at,
        )

    found = compare(side(1.0, starts[0]), side(1.59, starts[1]))
    assert found.pairs == pairs
    assert found.as_json()["pairs"] == pairs
    if pairs:
        assert found.total.verdict == FASTER
        low, high = found.total.speedup_interval or (0.0, 0.0)
        assert 1.45 < low < 1.59 < high < 1.75
        assert any("compared as 4 pairs" in line for line in notes(found))


def test_five_percent_are_found_with_20_runs_a_side() -> None:
    generator = np.random.default_rng(5)
    found = 0
    for _ in range(PAIRS):
        sides = [noisy_runs(generator, 20, "lognormal", speed) for speed in (1.0, 0.95)]
        total = compare(*sides).total
        back = compare(*reversed(sides)).total
        found += total.verdict == FASTER and back.verdict == SLOWER
    assert found >= 95


def test_dependent_blocks_of_one_run_give_no_evidence() -> None:
    generator = np.random.default_rng(9)

    def one_run(speed: float, dependence: float) -> RecordedRun:
        times_s = np.empty((5, BLOCKS))
        level = generator.normal(0, 0.05, 5)
        for block in range(BLOCKS):
            fresh = generator.normal(0, 0.05 * np.sqrt(1 - dependence**2), 5)
            level = dependence * level + fresh
            times_s[:, block] = speed * np.exp(level) / BLOCKS
        return run_with(times_s.sum(axis=1), times_s)

    for dependence in (0.0, 0.6):
        equal = [compare([one_run(1, dependence)], [one_run(1, dependence)]) for _ in range(PAIRS)]
        assert sum(verdicts(one) == {NO_EVIDENCE} for one in equal) >= 95
        assert all(one.total.low_percent is not None for one in equal)
    halved = compare([one_run(1, 0.5)], [one_run(0.5, 0.5)])
    assert verdicts(halved) == {FASTER}


def test_single_runs_that_differ_as_runs_do_give_no_evidence() -> None:
    generator = np.random.default_rng(2)

    def one_run() -> RecordedRun:
        of_run = np.exp(generator.normal(0, 0.03))
        times_s = of_run * np.exp(generator.normal(0, 0.05, (5, BLOCKS)))
        return run_with(times_s.sum(axis=1), times_s)

    clean = [verdicts(compare([one_run()], [one_run()])) == {NO_EVIDENCE} for _ in range(PAIRS)]
    assert sum(clean) >= 95


def test_one_run_without_blocks_is_one_sample() -> None:
    comparison = compare([run_with(np.ones(5))], [run_with(np.full(5, 0.1))])
    assert comparison.total.improvement_percent == pytest.approx(90)
    assert comparison.total.low_percent is None
    assert verdicts(comparison) == {NO_EVIDENCE}


def test_an_interval_holds_the_estimate_and_never_wavers() -> None:
    first = [Sample(np.array([1.0, 1.1, 0.9, 1.05]), np.ones(4))]
    second = [Sample(np.array([0.5, 0.52, 0.51]), np.ones(3))]
    found = weigh(first, second)
    assert found == weigh(first, second)
    assert found.low_percent is not None
    assert found.high_percent is not None
    assert found.low_percent < found.improvement_percent < found.high_percent
    assert weigh(first, first).improvement_percent == 0
    silent = [Sample(np.array([0.0, 1.0]), np.ones(2))]
    assert weigh(first, silent).verdict == NO_EVIDENCE


def test_rows_cut_differently_leave_the_word_to_the_total() -> None:
    # The same gradients: many messages of one size, or a few of another.
    def run(many: float, few: float) -> RecordedRun:
        rows = run_with(np.array([22.3 * many, 1.0, 8.0 * few])).rows
        amounts = (int(1e9 * many), 1_000_000, int(1e9 * few))
        changed = [
            dataclasses.replace(row, message_bytes=amount)
            for row, amount in zip(rows, amounts, strict=True)
        ]
        return RecordedRun("run", 2, tuple(changed))

    sides = [[run(1 - part, part) for part in parts] for parts in ((0.01, 0.02), (0.99, 0.98))]
    comparison = compare(*sides)
    assert [row.verdict for row in comparison.rows] == [
        "cut differently",
        NO_EVIDENCE,
        "cut differently",
    ]
    assert {row.improvement_percent for row in comparison.rows[::2]} == {None}
    assert comparison.cut_differently == tuple(row.name for row in comparison.rows[::2])
    assert comparison.total.verdict == FASTER
    assert comparison.total.improvement_percent == pytest.approx(100 * (1 - 9.2 / 23), abs=2)
    assert any("cut the same gradients" in line for line in notes(comparison))
    assert len(comparison.shown) == 2
    assert not compare(sides[0], sides[0]).cut_differently


def _gate(first: float, second: float, runs: int, limit: float, noise: float = 0.01) -> int:
    generator = np.random.default_rng(3)
    sides = [
        [run_with(speed * np.exp(generator.normal(0, noise, 5))) for _ in range(runs)]
        for speed in (first, second)
    ]
    return check(compare(*sides), limit).exit_code


def test_the_gate() -> None:
    assert _gate(1.0, 1.0, 5, 5) == 0
    assert _gate(1.0, 1.2, 5, 5) == 1
    assert _gate(1.0, 1.03, 5, 5) == 0
    assert _gate(1.0, 1.03, 5, 0) == 1
    assert _gate(1.2, 1.0, 5, 5) == 0
    # Noise alone is not a regression, but what may hide in it is reported.
    generator = np.random.default_rng(1)
    wide = [[run_with(np.exp(generator.normal(0, 0.3, 5))) for _ in range(3)] for _ in range(2)]
    outcome = check(compare(*wide), 5)
    assert outcome.exit_code == 0
    assert "is not excluded" in outcome.reason
    with pytest.raises(UsageError, match="record 2 or more a side"):
        _gate(1.0, 1.0, 1, 5)


def run_of_steps(
    generator: np.random.Generator,
    step_s: float,
    *,
    of_run: float = 0.03,
    noise: float = 0.05,
    steps: int = 60,
) -> RecordedRun:
    """A run of 2 ranks whose steps differ by chance: each alone, and all of a run together."""
    level = step_s * np.exp(generator.normal(0, of_run))
    times_s = level * np.exp(generator.normal(0, noise, (2, steps)))
    times_s[:, 0] *= 8
    marked = [
        dataclasses.replace(
            EMPTY,
            rank=rank,
            steps=tuple(
                Step(i, 0.0, float(t), float(t) * 0.8, float(t) * 0.2, 0.0, 0.0, 0.0)
                for i, t in enumerate(of_rank)
            ),
        )
        for rank, of_rank in enumerate(times_s)
    ]
    blocks = step_blocks(Recording(Path("x"), tuple(marked)))
    return RecordedRun("run", 2, (), None, blocks, 10.0)


EMPTY = RankRecording(0, 2, "host", 1, "finalized", 0.0, 10.0, 0.0, 0, "MPI", ())


@pytest.mark.parametrize("runs", [1, 2])
def test_equal_steps_give_no_evidence_and_faster_ones_do(runs: int) -> None:
    generator = np.random.default_rng(runs)

    def side(step_s: float, of_run: float) -> list[RecordedRun]:
        return [run_of_steps(generator, step_s, of_run=of_run) for _ in range(runs)]

    # Runs that differ as much as is assumed; and three times as much, where runs can show it.
    for of_run in (0.03, *([0.1] if runs > 1 else [])):
        clean = [compare(side(0.4, of_run), side(0.4, of_run)).lead for _ in range(PAIRS)]
        assert sum(row is None or row.verdict != NO_EVIDENCE for row in clean) <= MOST_OF_PAIRS
    found = compare(side(0.58, 0.03), side(0.36, 0.03), labels=("stock", "tuned"))
    assert found.lead is not None
    assert found.lead.verdict == FASTER
    assert found.verdict.startswith("tuned is faster: a step takes ")
    low, high = found.lead.speedup_interval or (0.0, 0.0)
    assert 1.2 < low < (found.lead.speedup or 0.0) < high < 2.2
    as_json = found.as_json()
    assert as_json["verdict"] == found.verdict
    assert as_json["outcome"] == FASTER
    assert as_json["speedup_interval"] == (low, high)


def test_the_warm_up_is_no_part_of_the_steps() -> None:
    generator = np.random.default_rng(1)
    blocks = run_of_steps(generator, 0.4, of_run=0.0, noise=0.0, steps=13).steps
    assert blocks is not None
    assert blocks.warm_up == 1
    assert blocks.count == 12
    assert sum(blocks.time_s) / blocks.count == pytest.approx(0.4)
    assert step_blocks(Recording(Path("x"), (EMPTY,))) is None


@pytest.mark.parametrize(
    ("times_s", "warm_up"),
    [
        ([1.0] * 12, 1),
        ([1.4, 1.0, 1.6, 3.4, *[1.0] * 9], 4),  # hvd_ext's, which lays out its buckets
        ([5.0, 5.0, *[1.0] * 10], 2),
        ([5.0] * 9 + [1.0] * 11, 9),  # at most half
        ([*[1.0] * 9, 3.0, 1.0, 1.0], 1),
    ],
)
def test_slow_steps_of_the_first_quarter_are_warm_up(times_s: list[float], warm_up: int) -> None:
    assert leading_slow(np.array(times_s)) == warm_up


def test_a_program_without_steps_is_compared_by_its_run() -> None:
    def side(times_s: list[float]) -> list[RecordedRun]:
        return [RecordedRun("run", 2, (), None, None, time_s) for time_s in times_s]

    many = compare(side([10.0, 10.2, 9.9]), side([7.0, 7.1, 6.9]))
    assert many.lead is not None
    assert (many.lead.name, many.lead.verdict) == ("run", FASTER)
    single = compare(side([10.0]), side([7.0]))
    assert single.lead is not None
    assert single.lead.speedup_interval is None
    assert single.headline.verdict == NO_EVIDENCE
    assert any("mark steps" in line for line in notes(single))
    nothing = compare(side([0.0]), side([7.0]))
    assert nothing.lead is None
    assert "nothing in common" in nothing.verdict


def test_no_interval_is_absurd() -> None:
    # Two runs a side that differ by a factor: little is known, and nothing odd is printed.
    def side(*times_s: float) -> list[RecordedRun]:
        return [RecordedRun("run", 2, (), None, None, time_s) for time_s in times_s]

    comparison = compare(side(1.0, 9.0), side(2.0, 0.1))
    assert comparison.headline.verdict == NO_EVIDENCE
    printed = io.StringIO()
    render(comparison, Console(file=printed, width=80))
    assert "too wide" in printed.getvalue()
    assert "999" not in printed.getvalue()
