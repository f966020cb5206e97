"""The table that toolchain/gpu_check.py makes of what was run, and what was not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "toolchain" / "gpu_check.py"


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    spec = importlib.util.spec_from_file_location("gpu_check", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_and_failures_stand_in_the_page(gpu_check: ModuleType, tmp_path: Path) -> None:
    check = gpu_check.Check(tmp_path / "out", minutes=1)
    check.results |= {
        "command": "gpu_check",
        "machine": {"gpu": "a GPU", "gpus": 1},
        "tests": {"tests": 12, "skipped": 4, "failed": 1},
        "exchange_2": {
            "message_bytes": 102_228_128,
            "size": 2,
            "time_ms": {"hvd_ext": {"median": 0.5}, "mpi": {"median": 30.0}},
            "ratio_vs_best_peer": 60.0,
            "share_of_copy_bandwidth": 0.8,
        },
        "images_per_second": {"ResNet-50, fp32": 400.0},
        "samples_per_second": {"1": None, "2": 3.0},
    }

    def fails(check: object) -> None:
        check.run("a step", 30, sys.executable, "-c", "print('why'); raise SystemExit(3)")

    check.step("a step", fails)
    page = (tmp_path / "out" / "gpu.md").read_text()
    assert "Not run yet." not in page
    for line in (
        "- gpu: a GPU",
        "| tests/gpu | 7 passed, 1 failed, 4 skipped |",
        "| exchange of 102.2 MB, 2 processes | hvd_ext 0.500 ms, mpi 30.000 ms; "
        "60.00 x the best peer, 0.80 of a copy's bandwidth |",
        "| ResNet-50, fp32 | 400.0 images/s |",
        "| mesh 2K by 1, 5 GiB a process | does not fit |",
        "| mesh 2K by 2, 5 GiB a process | 3.00 samples/s |",
        "| a step | not measured: exit code 3: why (a-step.log) |",
    ):
        assert line in page.splitlines()
    assert page.startswith("# GPUs")
    # What stands behind the table stays.
    assert "CUDA graphs." in page.partition("<!-- end of table -->")[2]


def test_a_step_that_takes_too_long_is_ended_with_its_children(
    gpu_check: ModuleType, tmp_path: Path
) -> None:
    check = gpu_check.Check(tmp_path, minutes=1)
    code = "import subprocess; subprocess.run(['sleep', '86399'], start_new_session=True)"
    with pytest.raises(gpu_check.Failure, match="not done in 1 s"):
        check.run("slow", 1, sys.executable, "-c", code)
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 86399" not in processes.splitlines()


def test_without_time_nothing_is_begun(gpu_check: ModuleType, tmp_path: Path) -> None:
    check = gpu_check.Check(tmp_path, minutes=0)
    with pytest.raises(gpu_check.Failure, match="no time was left"):
        check.run("a step", 30, sys.executable, "-c", "raise SystemExit('begun')")


def test_help_has_an_example() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--help"], capture_output=True, text=True, check=True
    )
    assert "--wheels gpu-wheels" in done.stdout
