"""The table that toolchain/gpu_check.py makes of what was run, and what was not."""

from __future__ import annotations

import importlib.util
import lzma
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.device_exchange import summarize

SAMPLES = {"staged": [0.0005], "mpi": [0.03], "copy": [0.0004]}
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "toolchain" / "gpu_check.py"
CONTROL = "nvidia-cuda-mps-control"


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
        "exchange_4_2": {
            "size": 4,
            "self_check_s": 0.75,
            "shares_gpu": True,
            "mps": False,
            "left_out": {"nccl": "invalid usage"},
            "cases": [summarize(SAMPLES, "staged", 4, 2, 102_228_128)],
        },
        "exchange_2_1": {
            "size": 2,
            "self_check_s": 0.5,
            "shares_gpu": True,
            "mps": True,
            "left_out": {},
            "cases": [summarize({**SAMPLES, "nccl": [0.001]}, "staged", 2, 1, 4096)],
        },
        "exchange_4_1": {
            "size": 4,
            "self_check_s": 0.5,
            "shares_gpu": True,
            "mps": True,
            "left_out": {},
            "cases": [summarize({**SAMPLES, "ipc_pairwise": [0.002]}, "ipc_pairwise", 4, 1, 4096)],
        },
        "halos_2": {"mesh 1": {"exchange_ms": 0.02, "copy_ms": 0.01, "sent_bytes": 294_912}},
        "spatial_steps_2": {
            "mesh 2048x2048": {
                **{"step_ms": 210.04, "host_share": 0.031, "memory_bytes": 3 * 2**30},
                **{"error": 2e-5, "noise": 1e-6, "direct": True},
            }
        },
        "given_to_mpi": {"reason": "", "us": {"staged": 9000.0, "mpi": 4000.0}},
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
        "| exchange of 102.228 MB, 4 processes on 2 pretended nodes | staged 0.500 ms, mpi "
        "30.000 ms, copy 0.400 ms; staged chosen: 60.00 x the best peer, NCCL not measured, 0.80 "
        "of a copy's bandwidth |",
        "| self-check, 4 processes | 0.75 s |",
        "| NCCL, 4 processes | they share a GPU without MPS, which is unfair to NCCL |",
        "| nccl, 4 processes | left out: invalid usage |",
        "| exchange of 0.004 MB, 2 processes under MPS | staged 0.500 ms, mpi 30.000 ms, copy "
        "0.400 ms, nccl 1.000 ms; staged chosen: 2.00 x the best peer, 2.00 x NCCL, 0.80 of a "
        "copy's bandwidth |",
        "| one peer at a time (_pairwise), 4 processes under MPS | they share a GPU and use no "
        "link: this comparison says nothing about PCIe |",
        "| GPU memory given to MPI, 2 processes | staged 9.000 ms, mpi 4.000 ms |",
        "| halo, mesh 1, 0.29 MB, 2 processes | 0.020 ms, a copy of as many bytes 0.010 ms |",
        "| mesh 2048x2048 split over 2 processes | a step 210.0 ms, the host in exchanges for "
        "3.1% of it, 3.00 GiB a process; gradients differ by 2.0e-05, noise 1.0e-06 |",
        "| ResNet-50, fp32 | 400.0 images/s |",
        "| mesh 2K by 1, 5 GiB a process | does not fit |",
        "| mesh 2K by 2, 5 GiB a process | 3.00 samples/s |",
        "| a step | not measured: exit code 3: why (a-step.log) |",
    ):
        assert line in page.splitlines()
    assert page.startswith("# GPUs")
    assert "NCCL, 2 processes" not in page
    assert page.count("(_pairwise)") == 1
    # What stands behind the table stays.
    assert "CUDA graphs" in page.partition("<!-- end of table -->")[2]


def test_each_part_can_be_run_alone(gpu_check: ModuleType) -> None:
    named = [
        name for part in gpu_check.PARTS for name, *_ in gpu_check.steps(part, has_horovod=True)
    ]
    exchanges = ["exchange of 2", "exchange of 4", "exchange of 2 under MPS"]
    exchanges += ["halos of 2", "halos of 4"]
    exchanges += [f"split models by {count}" for count in (2, 4)]
    assert named[:9] == ["tests/gpu", *exchanges, "exchange of 4 on 2 nodes"]
    assert len(set(named)) == len(named)
    assert gpu_check.steps("horovod", has_horovod=False) == []


def test_a_part_that_is_unknown_is_refused() -> None:
    command = [sys.executable, str(PROGRAM), "--only", "tests,nvlink"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--only nvlink: use tests, exchange, spatial" in done.stderr


def test_a_packed_nccl_is_loaded_before_pytorchs(gpu_check: ModuleType, tmp_path: Path) -> None:
    packed = tmp_path / "libnccl.so.2.xz"
    packed.write_bytes(lzma.compress(b"a library"))
    check = gpu_check.Check(tmp_path / "out", minutes=1)
    gpu_check.use_nccl(check, packed)
    assert Path(check.environment["LD_PRELOAD"]).read_bytes() == b"a library"


# Writes what it is told, and, as the real one, its number; ends on "quit", unless it is to hang.
DAEMON = """#!/bin/sh
echo "$*" >> "$MPS_TOLD"
echo "$CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY" >> "$MPS_TOLD"
pid="$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid"
if [ "$1" = -d ]; then
    [ "$MPS_HOW" = refuses ] && { echo "a server is running"; exit 1; }
    sleep 86398 > /dev/null 2>&1 &
    echo $! > "$pid"
    exit
fi
[ "$MPS_HOW" = hangs ] && exec sleep 86397
read word
echo "$word" >> "$MPS_TOLD"
kill $(cat "$pid")
"""
EXCHANGE = """#!/bin/sh
while [ "$1" != --json ]; do shift; done
cat > "$2" << END
{"mps": true, "pipe": "$CUDA_MPS_PIPE_DIRECTORY", "share": $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,
 "size": 2, "self_check_s": 0.25, "shares_gpu": true, "left_out": {}, "cases": []}
END
"""


@pytest.fixture
def with_daemon(gpu_check: ModuleType, tmp_path: Path) -> Any:
    """A check with one GPU, and stand-ins for the daemon and the benchmark."""
    check = gpu_check.Check(tmp_path / "out", minutes=1)
    check.results |= {"command": "gpu_check", "machine": {"gpus": 1}}
    for path, text in ((check.python, EXCHANGE), (tmp_path / "bin" / CONTROL, DAEMON)):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    check.environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{check.environment['PATH']}"
    check.environment["MPS_TOLD"] = str(tmp_path / "told")
    return check


def ended(tmp_path: Path, words: str) -> bool:
    """Whether no process runs that."""
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return words not in processes.splitlines()


def test_an_exchange_is_measured_under_mps(
    gpu_check: ModuleType, with_daemon: Any, tmp_path: Path
) -> None:
    gpu_check.measure_under_mps(with_daemon, 2)
    started, private, asked, again, word = (tmp_path / "told").read_text().splitlines()
    assert (started, asked, word) == ("-d", "", "quit")
    pipe, log = private.split()
    assert private == again
    found = with_daemon.results["exchange_2_1_mps"]
    assert (found["pipe"], found["share"]) == (pipe, 50)
    assert not Path(pipe).exists()
    assert not Path(log).exists()
    assert Path(pipe).parent == Path(log).parent
    assert ended(tmp_path, "sleep 86398")
    # Each on a GPU of its own, they need none.
    (tmp_path / "told").unlink()
    with_daemon.results["machine"]["gpus"] = 2
    gpu_check.measure_under_mps(with_daemon, 2)
    assert not (tmp_path / "told").exists()


def test_a_daemon_that_does_not_start_or_end_is_one_line(
    gpu_check: ModuleType, with_daemon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_daemon.environment["MPS_HOW"] = "refuses"
    with_daemon.step("MPS", gpu_check.measure_under_mps, 2)
    assert "a server is running" in with_daemon.results["problems"]["MPS"]
    monkeypatch.setattr("gpu_mps._STOP_WITHIN_S", 1)
    with_daemon.environment["MPS_HOW"] = "hangs"
    with_daemon.step("MPS", gpu_check.measure_under_mps, 2)
    assert "MPS" in with_daemon.results["done"]
    page = (tmp_path / "out" / "gpu.md").read_text()
    assert "| self-check, 2 processes under MPS | 0.25 s |" in page
    assert "unfair to NCCL |" not in page
    assert ended(tmp_path, "sleep 86398")
    assert ended(tmp_path, "sleep 86397")
    with_daemon.environment["PATH"] = "/nowhere"
    with pytest.raises(gpu_check.Failure, match="is not on the PATH"):
        gpu_check.measure_under_mps(with_daemon, 2)


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
