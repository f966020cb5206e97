"""Ranks that are missing or differ: the job ends, says who, and leaves nothing."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
import torch

import hvd_ext.torch
from hvd_ext.errors import MismatchError, UsageError


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if "hvd" in path.name}


def wrap(model):
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd_ext.torch.DistributedOptimizer(inner, model.named_parameters())


@pytest.mark.parametrize(
    "how",
    ["step", *(pytest.param(h, marks=pytest.mark.long) for h in ("die", "construct", "leave"))],
)
def test_a_missing_rank_ends_the_job_by_name_and_nothing_stays(launch, how, tmp_path):
    before, start = shared_memory(), time.monotonic()
    done = launch(
        3,
        ["tests/programs/job/missing_rank.py", how, tmp_path],
        env={"HVD_EXT_STALL_TIMEOUT_S": "3"},
        timeout=90,
    )
    assert done.returncode != 0, done.stdout
    assert "all steps done" not in done.stdout
    if how in ("construct", "step"):
        assert "rank 2" in done.stdout
        assert "within 3 s" in done.stdout
        assert "HVD_EXT_STALL_TIMEOUT_S" in done.stdout
    # Nobody waits for much longer than was set; starting the ranks takes its time too.
    assert time.monotonic() - start < 60
    assert shared_memory() <= before
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path) not in processes


def test_a_programs_own_error_is_the_last_word(launch):
    done = launch(2, ["tests/programs/job/missing_rank.py", "late"], timeout=60)
    assert done.returncode == 1, done.stdout
    assert "ValueError: loss is NaN" in done.stdout
    assert "signal" not in done.stdout


@pytest.mark.ranks(3)
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
def test_models_that_differ_are_refused_on_every_rank(comm, hvd, monkeypatch, what, says):
    odd = what if comm.rank == 2 else ""
    if odd == "bucket":
        monkeypatch.setenv("HVD_EXT_BUCKET_BYTES", "1 KiB")
    width = 7 if odd == "shape" else 8
    dtype = torch.float64 if odd == "dtype" else torch.float32
    model = torch.nn.Sequential(torch.nn.Linear(4, width, dtype=dtype))
    if odd == "more":
        model.append(torch.nn.Linear(width, 3))
    if odd == "layout":
        model[0].weight = torch.nn.Parameter(torch.zeros(4, 8).t())
    with pytest.raises(MismatchError, match="ranks have different models: rank 2 ") as refusal:
        wrap(model)
    assert says in str(refusal.value)


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("HVD_EXT_STALL_TIMEOUT_S", "soon", "give a number of seconds above 0"),
        ("HVD_EXT_BUCKET_BYTES", "0", "give a size above 0"),
        ("HVD_EXT_BUCKET_BYTES", "banana", "give a size above 0"),
    ],
)
def test_a_bad_setting_is_one_line(hvd, monkeypatch, variable, value, says):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError) as refusal:
        wrap(torch.nn.Linear(4, 8))
    assert str(refusal.value).startswith(f"{variable}={value!r}: {says}")
    assert "\n" not in str(refusal.value)


# That all ranks refuse it: above; that a trainer reports such an error once: test_trainers.py.
@pytest.mark.long
@pytest.mark.parametrize(
    ("features", "bucket_bytes", "code", "says"),
    [
        ("4,4", "banana", 2, "HVD_EXT_BUCKET_BYTES='banana': give a size above 0, such as .*"),
        (
            "4,8",
            "4 MiB",
            76,
            r"ranks have different models: rank 1 \(.*\) has .*, shape \(8, 3, 3, 3\), .*, "
            r"where rank 0 has .*, shape \(4, 3, 3, 3\), .*; build the same one on every rank",
        ),
    ],
    ids=["setting", "models"],
)
def test_what_no_rank_can_train_with_is_said_once_for_all(
    launch, tmp_path, features, bucket_bytes, code, says
):
    flags = ("--synthetic", "--blocks=1", "--patch=8", "--batch-size=1", "--steps=1", "--threads=1")
    done = launch(
        2,
        [
            "tests/programs/training/features_by_rank.py",
            features,
            *flags,
            "--output",
            tmp_path / "run",
        ],
        env={"HVD_EXT_BUCKET_BYTES": bucket_bytes},
    )
    assert done.returncode == code, done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "error: " in line.lower())
    assert re.fullmatch(rf"\[0\] edsr\.train: error: {says}", line), line
    assert "Traceback" not in done.stdout
