"""What all benchmarks do alike: outputs are tried before the work begins."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

import pytest

from benchmarks.compressed_training.__main__ import compare
from benchmarks.harness import print_table, shapes
from testbed.ranks import ROOT
from tests.support.training.trainer_runs import run_in_turn

BENCHMARKS = ROOT / "benchmarks"
PROGRAMS = sorted(
    ".".join(path.relative_to(BENCHMARKS).with_suffix("").parts).removesuffix(".__main__")
    for path in BENCHMARKS.rglob("*.py")
    if "harness.parser(" in path.read_text()
)


Runs = Mapping[str, "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """The flags of each benchmark that name an output."""
    commands = {name: (f"benchmarks.{name}", "--help") for name in PROGRAMS}
    helped = run_in_turn(0, tmp_path_factory.mktemp("helped"), commands)
    found = r"^  (--json|--plot|--output) "
    return {name: re.findall(found, helped[name].stdout, re.MULTILINE) for name in PROGRAMS}


@pytest.fixture(scope="module")
def refused(outputs: Mapping[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What benchmarks say to an output in a folder that is none."""
    folder = tmp_path_factory.mktemp("refused")
    (folder / "file").touch()
    commands = {
        f"{name} {flag}": (f"benchmarks.{name}", flag, folder / "file" / "result")
        for name in PROGRAMS
        for flag in outputs[name]
    }
    return run_in_turn(0, folder, commands)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_output_that_cannot_be_written_is_refused_at_the_start(
    outputs: Mapping[str, list[str]], refused: Runs, name: str
) -> None:
    assert outputs[name]
    for flag in outputs[name]:
        done = refused[f"{name} {flag}"]
        assert done.returncode == 2, done.stderr
        assert "cannot" in done.stderr
        assert "Traceback" not in done.stderr


def test_headings_are_whole_where_stdout_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    columns = ["message", *(f"share of a rank {number}" for number in range(6))]
    print_table("wide", columns, [["4 KiB", *["0.123"] * 6]])
    printed = capsys.readouterr().out
    assert [column for column in columns if column not in printed] == []


def test_time_to_a_loss_is_compared_with_that_of_none() -> None:
    falling = [[100.0 - step for step in range(100)], [102.0 - step for step in range(100)]]
    losses = {"none": falling, "fast": falling, "flat": [[99.0] * 100] * 2}
    times_s = {
        name: [[each_s * (step + 1) for step in range(100)]] * 2
        for name, each_s in {"none": 1.0, "fast": 0.25, "flat": 1.0}.items()
    }
    found = compare(losses, times_s)
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
