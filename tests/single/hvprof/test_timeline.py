"""Profiled steps: a GPU's trace made by hand is summed rightly, and damaged files are refused."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

import hvprof
from hvd_ext.errors import UsageError
from hvd_ext.timeline import Activity, Timeline, activities_of, read, write
from hvd_ext.variables import HVPROF_GPU
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.timeline import PARTS, StepTimeline, part_of, step_timelines
from hvprof.cli import main
from hvprof.format.writer import write_rank
from hvprof.model import ClockOffset
from tests.support.hvprof.made_profiles import (
    OVERLAPS,
    STEPS,
    events,
    marks,
    on_clock,
    write_profiled_job,
)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_profiled_job(tmp_path / "run")


def us(step: StepTimeline) -> dict[str, object]:
    """A step as the golden sums have it."""
    parts = {name: (part.time_s, part.hidden_s) for name, part in step.parts.items()}
    rounded = {name: tuple(round(s * 1e6, 6) for s in times) for name, times in parts.items()}
    return {"time": round(step.time_s * 1e6, 6), "idle": round(step.idle_s * 1e6, 6), **rounded}


def test_known_overlaps_of_a_gpu_are_summed_rightly(job: Path) -> None:
    found = step_timelines(hvprof.load(job))
    assert found is not None
    assert found.on_gpu
    assert [(step.rank, step.step) for step in found.steps] == [(0, 11), (0, 12), (1, 11), (1, 12)]
    for step in found.steps:
        assert us(step) == STEPS[step.step]
    first = found.steps[0]
    assert {pair: round(s * 1e6, 6) for pair, s in first.overlaps.items()} == OVERLAPS
    assert [tuple(round(s * 1e6, 6) for s in piece) for piece in first.busy["allreduce"]] == [
        (30, 55),
        (62, 66),
    ]
    assert found.mean.time_s == pytest.approx(100e-6)
    assert found.mean.parts["compute"].time_s == pytest.approx(74e-6)
    assert found.mean.overlaps["halo and allreduce"] == pytest.approx(6e-6)


def test_both_clocks_are_aligned_by_the_shortest_mark() -> None:
    activities, steps = activities_of(events(), marks())
    assert steps == [(on_clock(0), on_clock(80)), (on_clock(80), on_clock(200))]
    assert (activities[0].begin_ns, activities[0].end_ns) == (on_clock(0), on_clock(40))


def test_ranks_of_other_hosts_are_on_one_clock(job: Path) -> None:
    """Rank 1's clock is 1 s behind that of rank 0."""
    before, rank = hvprof.load(job), hvprof.load(job).ranks[1]
    offset = ClockOffset(at_s=1.0, offset_s=1.0, error_s=0.0)
    write_rank(job, replace(before.ranks[0], clock="host a"))
    write_rank(
        job, replace(rank, clock="host b", clock_offsets=(offset, replace(offset, at_s=9.0)))
    )
    found = step_timelines(hvprof.load(job))
    assert found is not None
    assert us(found.steps[2]) == STEPS[11]
    path = job / "trace.json"
    assert main(["report", str(job), "--trace", str(path)]) == 0
    begins = {
        event["pid"]: event["ts"]
        for event in json.loads(path.read_text())["traceEvents"]
        if event["name"] == "step 11"
    }
    assert begins[1] - begins[0] == pytest.approx(1e6)


def test_operators_of_a_cpu_do_not_run_while_their_thread_is_blocked(job: Path) -> None:
    """MPI takes 62-66 of 60-70 in thread 99; in another thread nothing is blocked."""
    path = job / "rank-00000.timeline"
    timeline = read(path)
    times = (on_clock(60), on_clock(70))
    for thread, computed_us in ((99, 6), (98, 10)):
        one = Activity("aten::mm", f"thread {thread}", "operator", *times)
        write(path, replace(timeline, activities=(one,)))
        found = step_timelines(hvprof.load(job))
        assert found is not None
        step = us(found.steps[0])
        assert (step["compute"], step["allreduce"]) == ((computed_us, 0), (4, computed_us - 6))
        assert step["idle"] == 70


def test_only_operators_that_no_other_has_called_are_kept() -> None:
    made = [event for event in events() if event["pid"] == 99 and event["cat"] != "cuda_runtime"]
    linear = next(event for event in made if event["cat"] == "cpu_op")
    inner = {**linear, "name": "aten::addmm", "ts": linear["ts"] + 1, "dur": 5}
    update = {**linear, "name": "aten::add_", "ts": linear["ts"] + 39, "dur": 1}
    sends = {**linear, "name": "c10d::allreduce_", "ts": linear["ts"] + 50, "dur": 5}
    activities, steps = activities_of([inner, sends, update, *made], marks())
    assert [(one.name, one.kind) for one in activities] == [
        ("aten::linear", "operator"),
        ("aten::add_", "optimizer"),
    ]
    assert steps == [(on_clock(0), on_clock(45)), (on_clock(47), on_clock(200))]


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16", "optimizer", "allreduce"),
        ("reduce_bfloat16", "kernel", "allreduce"),
        ("at::native::reduce_kernel", "kernel", "compute"),
        ("move", "optimizer", "halo"),
        ("pack_halo_3d", "kernel", "halo"),
        ("remove_padding", "kernel", "compute"),
        ("Memcpy PtoP (Device -> Device)", "copy", "copies"),
        ("aten::add_", "optimizer", "optimizer"),
    ],
)
def test_a_kernel_belongs_to_a_part_by_its_name(name: str, kind: str, part: str) -> None:
    assert part_of(Activity(name, "GPU 0, stream 7", kind, 0, 1)) == part


def test_all_reports_show_it(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(job)]) == 0
    text = capsys.readouterr().out
    assert "Timeline: steps 11 to 12 of 2 ranks, by torch.profiler (kernels of GPUs)" in text
    assert "At once: compute and allreduce 6.5 us" in text
    assert main(["report", str(job), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["timeline"]
    assert data["on_gpu"]
    assert [step["step"] for step in data["steps"]] == [11, 12, 11, 12]
    assert data["steps"][0]["overlaps"].keys() == OVERLAPS.keys()
    assert main(["report", str(job), "--html", str(job / "page.html")]) == 0
    page = (job / "page.html").read_text()
    for part in PARTS:
        assert f">{part}</text>" in page
    assert "rank 1, step 11" in page


def test_one_file_for_perfetto_has_streams_and_calls(job: Path) -> None:
    path = job / "trace.json"
    assert main(["report", str(job), "--trace", str(path)]) == 0
    found = [one for one in json.loads(path.read_text())["traceEvents"] if one["pid"] == 1]
    tracks = {one["tid"]: one["args"]["name"] for one in found if one["name"] == "thread_name"}
    shown = {
        (tracks.get(one["tid"], one["tid"]), one["name"][:9], one["ts"], one["dur"])
        for one in found
        if one["ph"] == "X"
    }
    assert ("GPU 0, stream 20", "move", 10, 10) in shown
    assert ("GPU 0, stream 21", "ncclDevKe", 30, 25) in shown
    assert (99, "allreduce", 62, 4) in shown
    assert ("profiled steps", "step 12", 80, 120) in shown


def test_a_cut_off_or_foreign_file_is_refused(job: Path) -> None:
    path = job / "rank-00001.timeline"
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError, match="is damaged"):
            _ = Analysis(hvprof.load(job)).timeline
    content = json.loads(gzip.decompress(whole))
    damages = [
        *([], {}, {**content, "names": [1]}, {**content, "steps": [[5, 4]]}),
        *({**content, "steps": [[0, 1 << 70]]}, {**content, "activities": [[0, 1, 9, 0, 0]]}),
        *({**content, "activities": [[0, 1 << 40, 0, 0, 0]]}, {**content, "calls": "AAAA"}),
        *({**content, "activities": [[0, 0, 0, 0, -1]]}, {**content, "calls": "?"}),
        *({**content, "steps": [[]]}, {**content, "rank": 0}, {**content, "rank": True}),
    ]
    for damage in damages:
        path.write_bytes(gzip.compress(json.dumps(damage).encode()))
        with pytest.raises(UsageError, match="is damaged"):
            _ = Analysis(hvprof.load(job)).timeline
    path.write_bytes(gzip.compress(json.dumps({**content, "format": 99}).encode()))
    with pytest.raises(UsageError, match="newer"):
        read(path)


def test_a_rank_without_recorded_steps_is_left_out(job: Path) -> None:
    write(job / "rank-00000.timeline", Timeline(0, 11, 12, 4))
    found = step_timelines(hvprof.load(job))
    assert found is not None
    assert {step.rank for step in found.steps} == {1}


def test_steps_are_a_number_or_the_first_and_the_last() -> None:
    assert HVPROF_GPU.parse("3") == (11, 13)
    assert HVPROF_GPU.parse("20-22") == (20, 22)
    assert HVPROF_GPU.parse("") is None
    for wrong in ("0", "x", "2-5", "9-8", "-3", "3-", "1e3"):
        with pytest.raises(ValueError, match="the first and the last step"):
            HVPROF_GPU.parse(wrong)
