"""Ranks that ask again and again whether a message is there wait for it."""

from __future__ import annotations

from pathlib import Path

from hvprof.analysis.analysis import Analysis
from tests.support.hvprof.hanging import cause_of, job
from tests.support.hvprof.recorded import record


def test_polling_is_waiting_and_seldom_tests_are_not(tmp_path: Path) -> None:
    recording = record(tmp_path / "run", 4, "polls.py")
    spent_s = [
        {cell.operation: cell.time_s for cell in rank.cells if cell.traffic == "data"}
        for rank in recording.ranks
    ]
    assert spent_s[0]["test"] > 1.0
    assert spent_s[1]["iprobe"] > 1.0
    # Between its tests this one does something else.
    assert spent_s[2]["test"] < 0.8
    cause = Analysis(recording).cause
    assert cause is not None
    assert not {0, 1}.intersection(cause.ranks)


def test_a_loop_of_tests_waits_for_its_source(tmp_path: Path) -> None:
    with job(tmp_path / "run", 3, "late", program="polls.py"):
        cause = cause_of(tmp_path / "run", "late")
    assert cause.ranks == (2,)
    # One of the two may have polled for a shorter time.
    assert {*cause.waiting} <= {0, 1}
