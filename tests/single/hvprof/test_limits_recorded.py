"""hvprof limits of a recording: steps of known parts, and waiting that is chance."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import hvprof
from hvd_ext.errors import UsageError
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.contention import StepParts
from hvprof.analysis.limits.limits import Question, limits_of_recording
from hvprof.analysis.limits.waiting import jitter_of
from hvprof.analysis.order_statistics import expected_maximum
from hvprof.cli import main
from hvprof.model import RankRecording, Recording, Step
from tests.support.hvprof.limits_command import layer, limits, write_layers
from tests.support.hvprof.made_recordings import MESSAGES, write_job

# What made_recordings writes, in seconds: compute, of it backward in two thirds, exposed,
# hidden, input, other.
COMPUTE, EXPOSED, HIDDEN, INPUT, OTHER = 0.2, 0.081, 0.054, 0.012, 0.006
STEP = COMPUTE + EXPOSED + INPUT + OTHER
STEP_BYTES = sum(message_bytes * calls for message_bytes, calls in MESSAGES)


def recorded(tmp_path: Path, ranks: int = 4) -> Path:
    return write_job(tmp_path / f"of{ranks}", ranks, noise=0.001)


def test_a_recording_says_what_its_step_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = limits(capsys, recorded(tmp_path))
    assert found["message_bytes"] == pytest.approx(STEP_BYTES, rel=1e-6)
    step = found["step"]
    assert step["step_time_s"] == pytest.approx(STEP, rel=0.03)
    assert step["waiting_s"] < 0.01
    assert found["synchrony_free_speedup"] == pytest.approx(STEP / (STEP - EXPOSED), rel=0.03)
    exchange_s = EXPOSED + HIDDEN - step["waiting_s"]
    assert step["exchange_s"] == pytest.approx(exchange_s, rel=0.05)
    # A ring of 4 sends 3/2 of the bytes.
    assert found["link_gb_s"] == pytest.approx(1.5 * STEP_BYTES / exchange_s / 1e9, rel=0.05)
    assert found["shared_input_ranks"] == pytest.approx(4 * COMPUTE / INPUT, rel=0.15)


def test_a_recording_is_projected_from_its_own_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = limits(capsys, recorded(tmp_path), "--to", 64)
    for name in ("ring", "tree"):
        rows = found[name]["strong"]
        assert [row["ranks"] for row in rows] == [4, 8, 16, 32, 64]
        assert rows[0]["speedup"] == pytest.approx(1)
        assert rows[0]["exposed_s"] + rows[0]["waiting_s"] == pytest.approx(EXPOSED, rel=0.05)
        for small, large in pairwise(rows):
            assert large["exposed_s"] >= small["exposed_s"]
            assert large["waiting_s"] >= small["waiting_s"]
            assert large["speedup_no_overlap"] <= large["speedup"]
            assert large["speedup"] <= large["speedup_full_overlap"]
    # What was hidden behind backward comes to light when backward shrinks.
    last = found["ring"]["strong"][-1]
    assert last["exposed_s"] > EXPOSED + HIDDEN / 2
    assert found["ring"]["stops"]["batch"] is None
    assert found["ring"]["strong"][-1]["batch"] is None
    for small, large in zip(found["ring"]["strong"], found["tree"]["strong"], strict=True):
        assert large["step_time_s"] >= small["step_time_s"] - 1e-12


def test_nodes_are_apart_from_ranks_of_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, two = recorded(tmp_path), recorded(tmp_path, 8)
    assert limits(capsys, alone)["ranks_per_node"] is None
    assert limits(capsys, two)["ranks_per_node"] == 4
    # 4 ranks of a node as recorded, and between nodes 2 (N-1)/N of the bytes over the link.
    found = limits(capsys, alone, "--link", 10, "--to", 16)
    base, eight, sixteen = found["ring"]["strong"]
    once_s = STEP_BYTES / (10e9 / 8)
    assert eight["exchange_s"] - base["exchange_s"] == pytest.approx(once_s, rel=1e-6)
    assert sixteen["exchange_s"] - base["exchange_s"] == pytest.approx(1.5 * once_s, rel=1e-6)


def test_layers_say_how_a_recording_shrinks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Half of the compute of a batch of 8 does not shrink with it.
    path = write_layers(tmp_path / "layers.json", [1, 8], [layer("l", [0.45, 0.8], 1000, 0.1)])
    run = recorded(tmp_path)
    found = limits(capsys, run, "--layers", path, "--batch", 32)
    rows = {row["ranks"]: row["compute_s"] for row in found["ring"]["strong"]}
    assert rows[4] == pytest.approx(COMPUTE, rel=0.05)
    assert rows[32] / rows[4] == pytest.approx(0.45 / 0.8, rel=1e-6)
    assert found["ring"]["stops"]["batch"] == 32
    with pytest.raises(UsageError, match="--layers needs --batch"):
        main(["limits", str(run), "--layers", str(path)])


def test_recordings_without_steps_or_of_one_rank_are_one_line(tmp_path: Path) -> None:
    alone = write_job(tmp_path / "alone", 1)
    assert Analysis(hvprof.load(alone)).limits is None
    with pytest.raises(UsageError, match="a recording of 1 rank has no exchange"):
        main(["limits", str(alone)])


def jittery(steps: int, sigma_s: float, slow_s: float, ranks: int) -> Recording:
    generator = np.random.default_rng(7)
    busy_s = 0.1 + generator.normal(0, sigma_s, (steps, ranks))
    busy_s += generator.normal(0, 0.02, (steps, 1))  # that all ranks share
    busy_s[:, 0] += slow_s
    last_s = busy_s.max(axis=1)
    found = [
        RankRecording(
            rank=rank,
            size=ranks,
            host="node",
            pid=1,
            state="finalized",
            start_unix_s=1e9,
            end_unix_s=2e9,
            recorder_cost_s=0,
            dropped_calls=0,
            mpi_library="",
            cells=(),
            steps=tuple(
                Step(i, 0, last_s[i], busy_s[i, rank], last_s[i] - busy_s[i, rank], 0, 0, 0)
                for i in range(steps)
            ),
            all_steps=Step(steps, 0, last_s.sum(), busy_s[:, rank].sum(), 0, 0, 0, 0),
        )
        for rank in range(ranks)
    ]
    return Recording(Path("made"), tuple(found))


@pytest.mark.parametrize("ranks", [2, 4])
def test_waiting_grows_by_chance_alone(ranks: int) -> None:
    even = jitter_of(jittery(1000, 0.004, 0.0, ranks))
    assert even.sigma_s == pytest.approx(0.004, rel=0.05)
    # The largest of 8 normal values: 1.424 standard deviations above their mean.
    assert even.waiting_s(8) == pytest.approx(0.004 * 1.424, rel=0.05)
    assert even.waiting_s(1) == 0
    slow = jitter_of(jittery(1000, 0.0, 0.03, ranks))
    # The others wait for it, however many they are; it does not wait.
    assert slow.waiting_s(ranks) == pytest.approx(0.03 * (ranks - 1) / ranks, rel=0.01)
    assert slow.waiting_s(512) == pytest.approx(slow.waiting_s(2), rel=0.01)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("slow_s", [0.0, 0.002, 0.01])
def test_ranks_that_scatter_pass_a_slow_one_now_and_then(ranks: int, slow_s: float) -> None:
    found = jitter_of(jittery(2000, 0.004, slow_s, ranks))
    # One slow rank of 8, beyond the mean of the recorded ones.
    busy_s = np.random.default_rng(5).normal(0, 0.004, (40_000, 8))
    busy_s[:, 0] += slow_s
    last_s = busy_s.max(axis=1).mean() - slow_s / ranks
    # The scatter that 2000 steps of two ranks show is itself uncertain by 1.6 %, one sigma.
    assert found.waiting_s(8) == pytest.approx(last_s, rel=0.08)


def test_a_number_of_ranks_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def counted(ranks: float, ahead: float = 0.0) -> float:
        asked.append(ranks)
        return expected_maximum(ranks, ahead)

    monkeypatch.setattr("hvprof.analysis.limits.waiting.expected_maximum", counted)
    limits = Analysis(hvprof.load(recorded(tmp_path))).limits
    assert limits is not None
    times = Counter(asked)
    # Also by the test for a slow rank, and for the jitter before it is scaled.
    assert times.pop(4) == 3
    assert len(times) > 100
    assert set(times.values()) == {1}


def test_few_steps_make_no_rank_slow() -> None:
    found = jitter_of(jittery(40, 0.004, 0.0, 4))
    assert found.slow_s == 0
    assert found.waiting_s(8) == pytest.approx(0.004 * 1.424, rel=0.15)


def test_a_step_without_regions_is_compute_but_for_its_exchange() -> None:
    recording = jittery(100, 0.001, 0.0, 2)
    parts = StepParts(0.13, 0.0, None, 0.03, 0.0, None, 0.1)
    found = limits_of_recording(recording, parts, 1e6, Question())
    assert found.step.compute_s == pytest.approx(0.1)
    assert found.step.other_s == 0
    assert found.step.time_s == pytest.approx(0.13)
