"""What all benchmarks do alike: outputs are tried before the work begins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import compressed_training, shapes
from testbed.ranks import ROOT, environment

PROGRAMS = sorted(
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()
)


def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *words],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_output_that_cannot_be_written_is_refused_at_the_start(
    name: str, tmp_path: Path
) -> None:
    text = run(name, "--help").stdout
    flags = re.findall(r"^  (--json|--plot|--output) ", text, re.MULTILINE)
    assert flags
    (tmp_path / "file").touch()
    for flag in flags:
        done = run(name, flag, str(tmp_path / "file" / "result"))
        assert done.returncode == 2, done.stderr
        assert "cannot" in done.stderr
        assert "Traceback" not in done.stderr


def test_time_to_a_loss_is_compared_with_that_of_none() -> None:
    falling = [[100.0 - step for step in range(100)], [102.0 - step for step in range(100)]]
    losses = {"none": falling, "fast": falling, "flat": [[99.0] * 100] * 2}
    times_s = {
        name: [[each_s * (step + 1) for step in range(100)]] * 2
        for name, each_s in {"none": 1.0, "fast": 0.25, "flat": 1.0}.items()
    }
    found = compressed_training.compare(losses, times_s)
    none, fast, flat = found["formats"]
    # Means of two seeds and of ten steps.
    assert none["mean"] == fast["mean"] == pytest.approx(101 - 94.5)
    assert found["spread"] == pytest.approx(2)
    assert found["target_loss"] == pytest.approx(101 - 44.5)
    assert none["seconds_to_target"] == pytest.approx(50)
    assert fast["ratio_vs_none"] == pytest.approx(4)
    assert fast["within_spread"]
    assert flat["seconds_to_target"] is flat["ratio_vs_none"] is None
    assert not flat["within_spread"]


def test_the_gradients_that_are_exchanged_are_those_of_the_models() -> None:
    pytest.importorskip("torch")
    from edsr.model import EDSR, PRESETS, Architecture
    from resnet.model import resnet50

    models = {"resnet50": resnet50(), "edsr": EDSR(Architecture(2, **PRESETS["baseline"]))}
    models["edsr_full"] = EDSR(Architecture(2, **PRESETS["full"]))
    assert models.keys() == shapes.MODELS.keys()
    for name, model in models.items():
        learnt = [tuple(p.shape) for p in model.parameters() if p.requires_grad]
        assert shapes.MODELS[name]() == learnt
