"""Limits of a program whose ranks really exchange, and whose steps are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvprof.cli import main
from tests.recorded import record

GRADIENT_BYTES = 4000  # the 1000 float32 of a step's allreduce


def test_limits_of_a_recorded_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = record(tmp_path / "run", 2, "known_overlap.py")
    sums = recording.all_steps
    assert sums is not None
    assert main(["limits", str(tmp_path / "run"), "--to", "32", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    step = found["step"]
    assert step["step_time_s"] == pytest.approx(sums.time_s / sums.index, rel=1e-6)
    assert found["message_bytes"] == pytest.approx(GRADIENT_BYTES)
    parts = ("compute_s", "exposed_s", "slowed_s", "waiting_s", "io_s", "other_s")
    assert sum(step[name] for name in parts) == pytest.approx(step["step_time_s"], rel=1e-6)
    assert step["compute_s"] == pytest.approx(sums.compute_s / sums.index, rel=0.05)
    # The exchange is as long as one rank is late: rank 0 hides most of it, for as long as it
    # computes, and when compute shrinks that comes to light.
    rows = found["ring"]["strong"]
    assert [row["ranks"] for row in rows] == [2, 4, 8, 16, 32]
    assert rows[-1]["exposed_s"] > rows[0]["exposed_s"]
    assert rows[-1]["speedup"] < 16 < rows[-1]["ranks"]
    assert found["ring"]["rules"]["limit"] in ("exchange", "efficiency")
