"""Ranks that are missing or differ: the job ends, says who, and leaves nothing."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


@pytest.mark.parametrize("how", ["construct", "step", "die", "leave"])
def test_a_missing_rank_ends_the_job_by_name(launch, how):
    start = time.monotonic()
    done = launch(
        3,
        ["tests/programs/missing_rank.py", how],
        env={"HVD_EXT_STALL_TIMEOUT_S": "5"},
        timeout=90,
    )
    assert done.returncode != 0, done.stdout
    assert "all steps done" not in done.stdout
    if how in ("construct", "step"):
        assert "rank 2" in done.stdout
        assert "within 5 s" in done.stdout
        assert "HVD_EXT_STALL_TIMEOUT_S" in done.stdout
    # Nobody waits for much longer than was set; starting the ranks takes its time too.
    assert time.monotonic() - start < 60


def test_a_programs_own_error_is_the_last_word(launch):
    done = launch(2, ["tests/programs/missing_rank.py", "late"], timeout=60)
    assert done.returncode == 1, done.stdout
    assert "ValueError: loss is NaN" in done.stdout
    assert "signal" not in done.stdout


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("shape", "shape (7, 4)"),
        ("dtype", "float64"),
        ("more", "'1.weight'"),
        ("layout", "strides (1, 8)"),
        ("bucket", "HVD_EXT_BUCKET_BYTES=1024"),
    ],
)
def test_models_that_differ_are_refused_on_every_rank(launch, what, says):
    done = launch(3, ["tests/programs/different_models.py", what], timeout=60)
    assert done.returncode != 0
    assert "not noticed" not in done.stdout
    assert "ranks have different models: rank 2" in done.stdout
    assert says in done.stdout


def test_nothing_stays_behind_after_a_kill(launch):
    before = shared_memory()
    program = ["tests/programs/missing_rank.py", "die"]
    launch(2, program, env={"HVD_EXT_STALL_TIMEOUT_S": "5"}, timeout=60)
    left = {name for name in shared_memory() - before if "hvd" in name}
    assert left == set()
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "missing_rank.py die" not in processes


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("HVD_EXT_STALL_TIMEOUT_S", "soon", "give a number of seconds above 0"),
        ("HVD_EXT_BUCKET_BYTES", "0", "give a size above 0"),
        ("HVD_EXT_BUCKET_BYTES", "banana", "give a size above 0"),
    ],
)
def test_a_bad_setting_is_one_line(launch, variable, value, says):
    done = launch(2, ["tests/programs/missing_rank.py", "none"], env={variable: value})
    assert done.returncode != 0
    assert f"{variable}={value!r}: {says}" in done.stdout
