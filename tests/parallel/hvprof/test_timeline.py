"""`hvprof record --gpu`: steps of real trainings are profiled, with their exchange and update."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hvprof
from hvd_ext.timeline import read
from hvprof.analysis.timeline import PARTS, StepTimelines, step_timelines
from tests.support.hvprof.recorded import PROGRAMS, RECORD, run

PROGRAM = PROGRAMS / "profiled.py"
BY_TORCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
BY_MPI = ["hvd-launch", "run", "-np", "2", "--", sys.executable]


def profiled(
    folder: Path, steps: str, door: str, taken: int, *, code: int = 0
) -> tuple[StepTimelines | None, str]:
    """The timeline of a recorded training, and what hvprof said."""
    launcher = BY_MPI if door in ("horovod", "hvd_ext", "plain") else BY_TORCH
    command = [*launcher, PROGRAM, door, str(taken)]
    done = run([*RECORD, "--gpu", steps, "-o", folder, "--", *command])
    assert (done.returncode == 0) == (code == 0), done.stderr
    return step_timelines(hvprof.load(folder)), done.stderr


@pytest.mark.parametrize(
    "door", ["hvd_ext", *(pytest.param(x, marks=pytest.mark.long) for x in ("ddp", "horovod"))]
)
def test_steps_of_a_training_are_shown_with_exchange_and_update(tmp_path: Path, door: str) -> None:
    if door == "horovod":
        pytest.importorskip("horovod")
    found, said = profiled(tmp_path / "run", "3-4", door, 6)
    assert found is not None, said
    assert "timeline" not in said
    assert not found.on_gpu
    assert [(step.rank, step.step) for step in found.steps] == [(0, 3), (0, 4), (1, 3), (1, 4)]
    for step in found.steps:
        for part in ("compute", "optimizer", "allreduce"):
            assert 0 < step.parts[part].time_s <= step.time_s
        # What is not idle is covered by the parts, each at most once.
        busy_s = step.time_s - step.idle_s
        times_s = [step.parts[part].time_s for part in PARTS]
        assert max(times_s) <= busy_s + 1e-9
        assert busy_s <= sum(times_s) + 1e-9
    recording = hvprof.load(tmp_path / "run")
    path = tmp_path / "trace.json"
    done = run([sys.executable, "-m", "hvprof", "report", recording.directory, "--trace", path])
    assert done.returncode == 0, done.stderr
    shown = [one for one in json.loads(path.read_text())["traceEvents"] if one["ph"] == "X"]
    for rank in (0, 1):
        of_rank = [one for one in shown if one["pid"] == rank]
        calls = [(one["ts"], one["tid"]) for one in of_rank if one["name"] == "allreduce"]
        assert len(set(calls)) == len(calls)  # those of the timeline are in the trace, too
        first, last = (
            next(one for one in of_rank if one["name"] == f"step {number}") for number in (3, 4)
        )
        # Where cores are short, the end of a collective is noticed late.
        meanwhile = {
            one["name"]
            for one in of_rank
            if first["ts"] <= one["ts"] + one["dur"] and one["ts"] <= last["ts"] + last["dur"]
        }
        assert {"aten::linear", "allreduce"} <= meanwhile


def test_what_a_program_marks_is_a_step(tmp_path: Path) -> None:
    found, said = profiled(tmp_path / "run", "3-3", "marked", 4)
    assert found is not None, said
    timeline = read(tmp_path / "run" / "rank-00000.timeline")
    assert len(timeline.steps) == 1
    parameters, updates = 6, 2
    divided = [one for one in timeline.activities if one.name == "aten::addcdiv_"]
    assert len(divided) == parameters * updates
    assert {one.kind for one in divided} == {"optimizer"}


def test_steps_whose_calls_were_overwritten_are_left_out(tmp_path: Path) -> None:
    """A trace of 3 calls and regions holds less than a step's."""
    folder = tmp_path / "run"
    command = [*BY_TORCH, PROGRAM, "ddp", "5"]
    done = run([*RECORD, "--gpu", "3-4", "--trace", "3", "-o", folder, "--", *command])
    assert done.returncode == 0, done.stderr
    assert "as later calls have overwritten theirs" in done.stderr
    found = step_timelines(hvprof.load(folder))
    assert found is None or {step.step for step in found.steps} == {4}


def test_a_job_that_ends_before_leaves_what_it_has(tmp_path: Path) -> None:
    found, said = profiled(tmp_path / "some", "4-9", "ddp", 6)
    assert found is not None
    assert {step.step for step in found.steps} == {4, 5, 6}
    assert "the timeline has 3 of 6 steps: rank 0 ended after step 6" in said


@pytest.mark.long
def test_a_job_that_ends_before_all_of_them_leaves_none(tmp_path: Path) -> None:
    found, said = profiled(tmp_path / "run", "3", "ddp", 4)
    assert found is None
    assert "the timeline has 0 of 3 steps: rank 0 ended after step 4" in said
    assert "such as --gpu 3-5" in said


@pytest.mark.long
def test_a_job_that_dies_later_has_its_timeline(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path / "run", "3-4", "dies", 5, code=1)
    assert found is not None
    assert (1, 4) in {(step.rank, step.step) for step in found.steps}


def test_a_program_without_torch_is_told_so(tmp_path: Path) -> None:
    found, said = profiled(tmp_path / "run", "3-4", "plain", 0)
    assert found is None
    assert "no timeline was recorded: no rank imported PyTorch" in said
