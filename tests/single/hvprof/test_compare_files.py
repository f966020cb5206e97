"""Comparing what lies in files: recordings and reports, whole and damaged, and the commands."""

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
from hvprof.analysis.comparison.bootstrap import FASTER
from hvprof.analysis.comparison.comparison import compare
from hvprof.analysis.comparison.inputs import load_side
from hvprof.analysis.comparison.regression import parse_percent
from hvprof.cli import main
from hvprof.reporters.comparison import cells, notes, render
from tests.single.hvprof.test_compare import run_with
from tests.support.hvprof.made_recordings import write_job

PAIRS = 100
LABELS = ("1-128 KB", "128 KB-16 MB", "16-32 MB", "32-64 MB", "64-128 MB")


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
    assert single.lead is not None
    assert single.lead.name == "step"
    assert single.lead.speedup_interval is not None
    assert any("runs may differ by more" in line for line in notes(single))


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


def test_no_number_of_a_table_is_cut(tmp_path: Path) -> None:
    sides = [write_job(tmp_path / f"a_rather_long_name_of_side_{name}", 2) for name in "ab"]
    comparison = compare(*(load_side(side) for side in sides))
    printed = io.StringIO()
    render(comparison, Console(file=printed, width=40))
    text = printed.getvalue()
    assert "…" not in text
    shown = [
        cell
        for row in comparison.shown
        # What may be left out: MB and the percentages.
        for place, cell in enumerate(cells(comparison, row))
        if place not in (2, 4, 5)
    ]
    assert shown
    assert all(cell in text for cell in shown)


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


def test_the_gate_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, speed in (("main", 1.0), ("branch", 1.15)):
        for run in range(4):
            write_job(tmp_path / side / str(run), 2, speed=speed, seed=run, noise=0.01)
    sides = [str(tmp_path / "main"), str(tmp_path / "branch")]
    assert main(["check", *sides, "--max-regression", "5%"]) == 1
    assert main(["check", *reversed(sides), "--max-regression", "5%"]) == 0
    assert main(["check", *sides, "--max-regression", "50", "--json"]) == 0
    with pytest.raises(UsageError, match="--confidence 100: give a percentage below 100"):
        main(["compare", *sides, "--confidence", "100"])
    for flags, said in (([], "with 95 %"), (["--confidence", "99"], "with 99 %")):
        capsys.readouterr()
        assert main(["compare", *sides, *flags]) == 0
        assert said in capsys.readouterr().out
    with pytest.raises(UsageError, match="invalid percentage"):
        main(["check", *sides, "--max-regression", "-1"])
    assert parse_percent(" 2.5 % ") == 2.5
