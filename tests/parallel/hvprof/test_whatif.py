"""Of a real training: what its steps are made of; its trace is replayed, and its exchanges
tell when gradients were ready."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hvprof
from hvprof.analysis.replay.timeline import steps_of
from hvprof.cli import main
from hvprof.format.trace import load_trace
from tests.support.hvprof.recorded import RECORD, run

pytestmark = pytest.mark.long
_TRAINING = ["--synthetic", "--steps", "8", "--blocks", "2", "--features", "8", "--patch", "16"]


@pytest.fixture(scope="module", params=["hvd_ext", "horovod"])
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """An exchange, and the recording of a training with it on two ranks."""
    folder = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "edsr.train", *_TRAINING, "--exchange", request.param]
    command += ["--output", str(folder / "out")]
    record = [*RECORD, "-o", folder / "run", "--trace", "100000", "--"]
    done = run([*record, "horovodrun", "-np", "2", *command])
    assert done.returncode == 0, done.stderr
    return request.param, folder / "run"


def test_a_trainer_says_where_its_steps_time_goes(recorded: tuple[str, Path]) -> None:
    for rank in hvprof.load(recorded[1]).ranks:
        calls = {region.name: region.calls for region in rank.regions}
        parts = ("load", "forward", "backward", "update", "exposed", "step")
        assert {name: calls[name] for name in parts} == dict.fromkeys(parts, 8)
        assert calls["checkpoint"] == 1
        steps = rank.all_steps
        assert steps is not None
        assert steps.exposed_s > 0
        assert steps.compute_s > 0


def test_a_training_is_replayed(
    recorded: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    exchange, recording = recorded
    trace = load_trace(hvprof.load(recording))
    assert trace is not None
    steps = steps_of(trace)
    assert len(steps) >= 7
    for rank in (rank for step in steps for rank in step):
        assert rank.exchanges
        assert rank.blocked
        with_ready = [one for one in rank.exchanges if one.ready_s is not None]
        if exchange == "hvd_ext":
            assert with_ready
            for one in with_ready:
                assert one.ready_s is not None
                # Buckets are there while backward runs, or when the thread begins to wait.
                assert rank.begin_s < one.ready_s <= one.begin_s
                assert one.ready_s <= rank.blocked[-1].end_s
        else:
            assert not with_ready
    found = {}
    for name, arguments in (("slower", ["--bandwidth", "1e-5x"]), ("none", ["--no-exchange"])):
        assert main(["whatif", str(recording), "--json", *arguments]) == 0
        found[name] = json.loads(capsys.readouterr().out)
        assert found[name]["replay_error_percent"] < 5
    assert found["none"]["predicted_high_s"] < found["none"]["step_time_s"]
    # So short an exchange may be all latency, which is half the answer; the other is all bytes.
    slower = found["slower"]
    assert slower["predicted_low_s"] > 0.95 * slower["step_time_s"]
    assert slower["predicted_high_s"] > 2 * slower["step_time_s"]
