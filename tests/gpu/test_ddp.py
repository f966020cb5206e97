"""torch.distributed on a GPU: DDP by NCCL and by hvd_ext, and both backends in one group.

NCCL with one process: it takes no two on a GPU, unless it is told to.
"""

from __future__ import annotations

import pytest

TRAIN = ("-m", "edsr.train", "--synthetic", "--batch-size", "2", "--device", "cuda")


def test_the_trainers_ddp_is_on_nccl(launch, tmp_path):
    arguments = [*TRAIN, "--exchange", "ddp", "--steps", "3", "--output", tmp_path]
    done = launch(1, arguments, timeout=90)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "checkpoint.pt").exists()


def test_hvd_exts_hook_serves_the_trainers_ddp(launch, tmp_path):
    arguments = [*TRAIN, "--exchange", "ddp+hvd_ext", "--steps", "3", "--output", tmp_path]
    done = launch(1, arguments, timeout=90)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "checkpoint.pt").exists()


@pytest.mark.parametrize(("np", "nodes"), [(2, []), (4, []), (4, ["nodes"])])
def test_hvd_exts_hook_gives_the_bits_of_the_cpu(launch, np, nodes):
    done = launch(np, ["tests/programs/c10d/ddp_on_gpu.py", *nodes], timeout=90)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("\nok ") == np, done.stdout


def test_one_group_serves_the_cpu_and_the_gpu(launch):
    torch = pytest.importorskip("torch")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 14):
        pytest.skip("torch before 2.14 makes no group of another's backend and NCCL")
    done = launch(1, ["tests/programs/c10d/beside_nccl.py"], timeout=90)
    assert done.returncode == 0, done.stdout
    assert "ok 0" in done.stdout
