"""The arena in device memory, at 1 to 4 processes on the GPUs that there are."""

from __future__ import annotations

import importlib.util
import re
import time
from subprocess import CompletedProcess

import psutil
import pytest

from hvd_ext.allreduce.table import load
from tests.gpu.conftest import gpus

PROGRAM = "tests/programs/arena/device_killed.py"
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="no horovod in this Python"
)


def finished(done: CompletedProcess[str]) -> int:
    """Ranks that came to their program's end."""
    return len(re.findall(r"\bok \d+$", done.stdout, re.MULTILINE))


@pytest.mark.parametrize("np", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sums_are_exact_and_equal_on_all_ranks(launch, np, dtype):
    done = launch(np, ["tests/programs/arena/device_sums.py", dtype], timeout=90)
    assert done.returncode == 0, done.stdout
    assert finished(done) == np, done.stdout


@pytest.mark.parametrize("np", [2, 4])
def test_each_process_sees_its_own_gpu_alone(launch, np):
    arguments = ["tests/programs/arena/device_sums.py", "float32", gpus()]
    done = launch(np, arguments, timeout=90)
    assert done.returncode == 0, done.stdout
    assert finished(done) == np, done.stdout


def test_handles_are_opened_once(launch):
    done = launch(2, ["tests/programs/arena/device_handles.py"], timeout=90)
    assert done.returncode == 0, done.stdout
    assert finished(done) == 2, done.stdout


def test_a_killed_rank_ends_the_others(launch):
    start = time.monotonic()
    done = launch(2, [PROGRAM], timeout=90)
    assert done.returncode != 0, done.stdout
    assert "all rounds done" not in done.stdout
    assert time.monotonic() - start < 100
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if PROGRAM in (p.info["cmdline"] or ())]
    assert not left
    # What it left on the GPU is in no one's way.
    assert launch(2, ["tests/programs/arena/device_handles.py"], timeout=90).returncode == 0


@needs_horovod
@pytest.mark.parametrize("np", [1, 2, 4])
def test_training_is_as_with_horovods_own(launch, np):
    done = launch(np, ["tests/programs/arena/device_optimizer.py"], timeout=90)
    assert done.returncode == 0, done.stdout
    assert finished(done) == np, done.stdout


@needs_horovod
def test_if_switched_off_gradients_on_a_gpu_go_by_horovods_own(launch):
    off = {"HVD_EXT_DEVICE_ARENA": "0"}
    done = launch(2, ["tests/programs/arena/device_optimizer.py", "off"], env=off, timeout=90)
    assert done.returncode == 0, done.stdout
    assert finished(done) == 2, done.stdout
    assert done.stdout.count("HVD_EXT_DEVICE_ARENA=0") == 1, done.stdout


@pytest.mark.parametrize("np", [2, 4])
def test_carriers_give_the_right_sums_and_are_measured(launch, tmp_path, np):
    path = tmp_path / "table.json"
    arguments = ["-m", "hvd_ext.arena.cuda.measure", "-o", path, "--most", "1MiB", "--rounds", "3"]
    shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}
    done = launch(np, arguments, env=shared, timeout=90)
    assert done.returncode == 0, done.stdout
    (row,) = load(path).rows
    carried = {name for _, times in row.measured_us for name in times}
    kernels = {"ipc", "ipc_pairwise"} if np > 2 else {"ipc"}
    assert carried == kernels | {"nccl"} or "nccl was not measured: " in done.stdout, done.stdout
    assert carried >= kernels, carried
