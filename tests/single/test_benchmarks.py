"""What all benchmarks do alike: outputs are tried before the work begins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import shapes
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
