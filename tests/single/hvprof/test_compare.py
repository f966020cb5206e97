"""Comparing: what chance alone must not show, what must be found, the gate, reading back."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hvd_ext.errors import UsageError
from hvprof.analysis.bootstrap import FASTER, NO_EVIDENCE, SLOWER, Sample, weigh
from hvprof.analysis.comparison import Comparison, compare
from hvprof.analysis.inputs import RecordedRun, load_side
from hvprof.analysis.regression import check, parse_percent
from hvprof.analysis.summary import BLOCKS, Row
from hvprof.cli import main
from hvprof.reporters.comparison import cells, notes, render
from tests.support.hvprof.made_recordings import write_job

PAIRS = 100
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
    clean = sum(
        verdicts(compare(noisy_runs(generator, runs, kind), noisy_runs(generator, runs, kind)))
        == {NO_EVIDENCE}
        for _ in range(PAIRS)
    )
    assert clean >= 95


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
        assert {one.resampled for one in equal} == {"blocks"}
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
    assert comparison.resampled == ""
    assert comparison.total.improvement_percent == pytest.approx(90)
    assert comparison.total.low_percent is None
    assert verdicts(comparison) == {NO_EVIDENCE}


def test_an_interval_holds_the_estimate_and_never_wavers() -> None:
    first = Sample(np.array([1.0, 1.1, 0.9, 1.05]), np.ones(4))
    second = Sample(np.array([0.5, 0.52, 0.51]), np.ones(3))
    found = weigh(first, second)
    assert found == weigh(first, second)
    assert found.low_percent is not None
    assert found.high_percent is not None
    assert found.low_percent < found.improvement_percent < found.high_percent
    assert weigh(first, first).improvement_percent == 0
    silent = Sample(np.array([0.0, 1.0]), np.ones(2))
    assert weigh(first, silent).verdict == NO_EVIDENCE


def test_sides_of_files_are_the_sides_of_recordings(tmp_path: Path) -> None:
    for side, speed in (("a", 1.0), ("b", 0.8)):
        for run in range(3):
            write_job(tmp_path / side / str(run), 3, speed=speed, seed=run)
    html, files = tmp_path / "html", tmp_path / "json"
    for run in range(3):
        for folder in (html, files):
            folder.mkdir(exist_ok=True)
        main(["report", str(tmp_path / "a" / str(run)), "--html", str(html / f"{run}.html")])
    for run in range(3):
        text = _printed(["report", str(tmp_path / "a" / str(run)), "--json"])
        (files / f"{run}.json").write_text(text)
    b = load_side(tmp_path / "b")
    expected = compare(load_side(tmp_path / "a"), b, labels=("a", "b"))
    assert expected.runs == (3, 3)
    assert expected.total.verdict == FASTER
    assert compare(load_side(html), b, labels=("a", "b")) == expected
    assert compare(load_side(files), b, labels=("a", "b")) == expected
    single = compare(load_side(html / "0.html"), load_side(tmp_path / "b" / "0"))
    assert single.runs == (1, 1)
    assert single.resampled == "blocks"


def _printed(arguments: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(arguments) == 0
    return out.getvalue()


def test_more_ranks_or_steps_are_said(tmp_path: Path) -> None:
    write_job(tmp_path / "a", 2)
    write_job(tmp_path / "b", 4, steps=640)
    text = _printed(["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert "moved different amounts of data" in text
    assert "different numbers of ranks" in text


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
    assert not comparison.same_cut
    assert comparison.total.verdict == FASTER
    assert comparison.total.improvement_percent == pytest.approx(100 * (1 - 9.2 / 23), abs=2)
    assert any("cut the same gradients" in line for line in notes(comparison))
    assert compare(sides[0], sides[0]).same_cut


def test_no_number_of_a_table_is_cut(tmp_path: Path) -> None:
    sides = [write_job(tmp_path / f"a_rather_long_name_of_side_{name}", 2) for name in "ab"]
    comparison = compare(*(load_side(side) for side in sides))
    printed = io.StringIO()
    render(comparison, Console(file=printed, width=40))
    text = printed.getvalue()
    assert "…" not in text
    for row in (*comparison.rows, comparison.total):
        for cell in cells(row):
            assert cell in text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.html", "", "is not a report"),
        ("a.html", "<html><body>hello", "is not a report"),
        ("a.json", "[" * 100_000, "is not a report"),
        ("a.json", "{}", "is not a report"),
        ("a.json", '{"json_version": 99}', "has format 99"),
        ("a.json", '{"json_version": "<b>"}', "has format '<b>'"),
        ("a.json", '{"json_version": 2}', "is damaged"),
        ("a.json", '{"json_version": 2, "ranks": [], "data": [{}]}', "is damaged"),
        ("a.json", '{"json_version": 2, "ranks": [], "data": []}', "is damaged"),
        ("a.json", '{"json_version": 2, "ranks": 5, "data": []}', "is damaged"),
        ("a.json", '{"json_version": 2, "ranks": [1], "data": [ROW]}', "is damaged"),
    ],
)
def test_a_hostile_report_is_one_clear_line(
    name: str, content: str, said: str, tmp_path: Path
) -> None:
    row = dataclasses.asdict(run_with(np.ones(1)).rows[0])
    path = tmp_path / name
    path.write_text(content.replace("ROW", json.dumps({**row, "time_s": -1})))
    with pytest.raises(UsageError, match=said) as raised:
        main(["compare", str(path), str(path)])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("time_s", 1e400),
        ("time_s", None),
        ("time_s", True),
        ("message_size", "5 KB"),
        ("operation", 5),
        ("blocks_s", "xxxx"),
        ("blocks_s", [1.0, 2.0]),
        ("calls", "many"),
    ],
)
def test_a_damaged_row_is_refused(key: str, value: object, tmp_path: Path) -> None:
    row = dataclasses.asdict(run_with(np.ones(1)).rows[0])
    path = tmp_path / "a.json"
    report = {"json_version": 2, "ranks": [1, 2], "data": [{**row, key: value}]}
    path.write_text(json.dumps(report))
    with pytest.raises(UsageError, match="is damaged"):
        load_side(path)


def test_what_is_no_side(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match="holds no recording and no report"):
        load_side(tmp_path)
    with pytest.raises(UsageError, match="is not a folder"):
        load_side(tmp_path / "absent")


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


def test_the_gate_from_the_command_line(tmp_path: Path) -> None:
    for side, speed in (("main", 1.0), ("branch", 1.15)):
        for run in range(4):
            write_job(tmp_path / side / str(run), 2, speed=speed, seed=run, noise=0.01)
    sides = [str(tmp_path / "main"), str(tmp_path / "branch")]
    assert main(["check", *sides, "--max-regression", "5%"]) == 1
    assert main(["check", *reversed(sides), "--max-regression", "5%"]) == 0
    assert main(["check", *sides, "--max-regression", "50", "--json"]) == 0
    with pytest.raises(UsageError, match="invalid percentage"):
        main(["check", *sides, "--max-regression", "-1"])
    assert parse_percent(" 2.5 % ") == 2.5
