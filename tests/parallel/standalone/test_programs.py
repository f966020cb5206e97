"""Programs without Horovod: how they end, unmodified scripts, examples and trainers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.launch.launching import WITHOUT_HOROVOD

PROGRAMS = "tests/programs/standalone"
ENDED = r"rank {} \(\S+\) ended before (hvd\.allreduce 'alone'|a collective) that other ranks"
LATE = r"rank {} \(\S+\) did not reach hvd\.allreduce 'alone' within 2 s"


@pytest.mark.parametrize(
    ("rank", "how", "says"),
    [
        pytest.param(1, "raises", "ValueError: boom", marks=pytest.mark.long),
        pytest.param(1, "exits", ENDED.format(1), marks=pytest.mark.long),
        (1, "asks and shuts down", ENDED.format(1)),
        pytest.param(0, "asks and shuts down", ENDED.format(0), marks=pytest.mark.long),
        (1, "sleeps", LATE.format(1)),
        pytest.param(0, "shuts down", ENDED.format(0), marks=pytest.mark.long),
        pytest.param(0, "sleeps", LATE.format(0), marks=pytest.mark.long),
        pytest.param(0, "raises", "ValueError: boom", marks=pytest.mark.long),
        pytest.param(2, "is killed", "SIGKILL", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_does_not_come_is_named_and_the_job_ends(launch, rank, how, says):
    env = {**WITHOUT_HOROVOD, "HVD_EXT_STALL_TIMEOUT_S": "2"}
    done = launch(3, [f"{PROGRAMS}/ends_badly.py", rank, how], env=env, timeout=60)
    assert done.returncode != 0, done.stdout
    assert re.search(says, done.stdout), done.stdout
    assert "came through" not in done.stdout


@pytest.mark.parametrize(
    "env",
    [pytest.param({}, marks=pytest.mark.long, id="Horovod"), WITHOUT_HOROVOD],
    ids=lambda env: "without Horovod",
)
def test_a_step_after_a_rank_has_left_fails_at_once(launch, env):
    done = launch(2, [f"{PROGRAMS}/leaves_training.py", 2], env=env, timeout=120)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("told at once") == 2


@pytest.mark.parametrize(
    "env",
    [pytest.param({}, marks=pytest.mark.long, id="Horovod"), WITHOUT_HOROVOD],
    ids=lambda env: "without Horovod",
)
def test_a_rank_that_has_left_another_node_ends_the_job_by_name(launch, env):
    done = launch(2, [f"{PROGRAMS}/leaves_training.py", 1], env=env, timeout=120)
    assert done.returncode != 0, done.stdout
    assert "rank 1 (node1) ended before a gradient exchange" in done.stdout


@pytest.mark.long
def test_a_program_may_end_without_shutdown(launch):
    done = launch(3, [f"{PROGRAMS}/ends_well.py"], env=WITHOUT_HOROVOD)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == 3


@pytest.mark.long
@pytest.mark.parametrize("env", [{}, WITHOUT_HOROVOD], ids=["Horovod", "without Horovod"])
def test_workers_that_import_mpi4py_again_start_no_mpi(launch, env):
    done = launch(2, [f"{PROGRAMS}/spawned_workers.py"], env=env, timeout=300)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("loaded on rank") == 2


@pytest.mark.long
def test_an_unmodified_horovod_script_runs(launch, tmp_path):
    script = "tests/programs/optimizer/plain_horovod.py"
    done = launch(2, ["-m", "hvd_ext", script, tmp_path / "result"], env=WITHOUT_HOROVOD)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "result").exists()


def test_without_torch_the_error_says_what_is_missing(launch):
    code = "import sys; sys.modules['torch'] = None; import hvd_ext.torch"
    done = launch(1, ["-c", code], env=WITHOUT_HOROVOD)
    assert "NotInstalledError: hvd_ext.torch needs torch, which is not installed" in done.stdout


EDSR = ("-m", "edsr.train", "--synthetic", "--blocks", 1, "--features", 8, "--patch", 12)
RESNET = ("-m", "resnet.train", "--synthetic", "--model", "resnet18", "--batch-size", 1)
TIMED = ("--image-size", 64, "--num-warmup-batches", 1, "--num-batches-per-iter", 1)


@pytest.mark.long
@pytest.mark.parametrize(
    "program",
    [
        (*EDSR, "--steps", 2, "--batch-size", 2, "--output", "out"),
        (*RESNET, *TIMED, "--num-iters", 2),
        ("examples/digits.py",),
    ],
    ids=lambda program: " ".join(map(str, program[:2])),
)
def test_trainers_and_examples_train(launch, tmp_path: Path, program):
    words = [tmp_path / "out" if word == "out" else word for word in program]
    done = launch(2, words, env=WITHOUT_HOROVOD)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_a_missing_flag_of_a_trainer_is_named_once(launch):
    done = launch(2, EDSR, env=WITHOUT_HOROVOD)
    assert done.returncode == 2, done.stdout
    assert done.stdout.count("arguments are required: --output") == 1
