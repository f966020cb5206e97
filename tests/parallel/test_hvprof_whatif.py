"""A trace of a real training is replayed, and its exchanges tell when gradients were ready."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hvprof
from hvprof.analysis.replay.timeline import steps_of
from hvprof.format.trace import load_trace
from tests.recorded import RECORD, run

_TRAINING = ["--synthetic", "--steps", "8", "--blocks", "2", "--features", "8", "--patch", "16"]


@pytest.mark.parametrize("exchange", ["hvd_ext", "horovod"])
def test_a_training_is_replayed(exchange: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edsr.train", *_TRAINING, "--exchange", exchange]
    command += ["--output", str(tmp_path / "out")]
    record = [*RECORD, "-o", tmp_path / "run", "--trace", "100000", "--"]
    done = run([*record, "horovodrun", "-np", "2", *command])
    assert done.returncode == 0, done.stderr
    trace = load_trace(hvprof.load(tmp_path / "run"))
    assert trace is not None
    steps = steps_of(trace)
    assert len(steps) >= 7
    for rank in (rank for step in steps for rank in step):
        assert rank.exchanges
        assert rank.blocked
        told = [one for one in rank.exchanges if one.ready_s is not None]
        if exchange == "hvd_ext":
            assert told
            for one in told:
                assert one.ready_s is not None
                # Buckets are there while backward runs, or when the thread begins to wait.
                assert rank.begin_s < one.ready_s <= one.begin_s
                assert one.ready_s <= rank.blocked[-1].end_s
        else:
            assert not told
    asked = [sys.executable, "-m", "hvprof", "whatif", tmp_path / "run", "--json"]
    found = {}
    for name, arguments in (("slower", ["--bandwidth", "1e-5x"]), ("none", ["--no-exchange"])):
        done = run([*asked, *arguments])
        assert done.returncode == 0, done.stderr
        found[name] = json.loads(done.stdout)
        assert found[name]["replay_error_percent"] < 5
    assert found["none"]["predicted_high_s"] < found["none"]["step_time_s"]
    # So short an exchange may be all latency, which is half the answer; the other is all bytes.
    slower = found["slower"]
    assert slower["predicted_low_s"] > 0.95 * slower["step_time_s"]
    assert slower["predicted_high_s"] > 2 * slower["step_time_s"]
