"""Programs that ask for Gloo, run over hvd_ext: the same weights, and what serves them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import ranks
from tests.support.launch.launching import ROOT, rank_environment, run_to_end

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
HVD_EXT = ["-m", "hvd_ext.c10d"]
PROGRAM = "tests/programs/c10d/asks_for_gloo.py"


def torchrun(*words: str) -> tuple[str, str]:
    path = os.pathsep.join(map(str, ranks.PACKAGES))
    done = run_to_end([*TORCHRUN, *words], rank_environment({"PYTHONPATH": path}), 120)
    assert done.returncode == 0, done.stdout
    (weights,) = re.findall(r"weights (\S+)", done.stdout)
    return weights, done.stdout


@pytest.mark.parametrize(
    ("how", "serves"),
    [
        ("as it is", "backend hvd_ext hooks ['hvd_ext_hook']"),
        *(
            pytest.param(how, serves, marks=pytest.mark.long)
            for how, serves in (
                ("by default", "backend hvd_ext hooks ['hvd_ext_hook']"),
                ("own hook", "backend hvd_ext hooks ['fp16_compress_hook']"),
                ("sparse", "backend hvd_ext hooks []"),
                ("sharded", "backend hvd_ext hooks []"),
            )
        ),
    ],
)
def test_a_program_that_asks_for_gloo_learns_the_same(how: str, serves: str) -> None:
    want, stock = torchrun(PROGRAM, how)
    assert "backend gloo" in stock or how == "by default"
    weights, told = torchrun(*HVD_EXT, PROGRAM, how)
    assert weights == want
    assert serves in told
    assert told.count("hvd_ext: active: serves torch.distributed in place of Gloo") == 1
    assert ("a model stays with its process group: module '0' has sparse" in told) == (
        how == "sparse"
    )


IMPORTED_BEFORE = """
import torch
import torch.distributed as dist
from torch.distributed import HashStore, init_process_group
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
import hvd_ext.c10d
from hvd_ext.c10d import fsdp
used = []
fsdp.use = used.append
hvd_ext.c10d.install()
for make in (
    lambda: init_process_group(store=HashStore(), rank=0, world_size=1),
    lambda: init_device_mesh("cpu", (1,)),
):
    make()
    print(dist.get_backend())
    fully_shard(torch.nn.Linear(2, 2))
    print(len(used))
    dist.destroy_process_group()
"""


def test_functions_that_were_imported_before_are_served() -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    path = os.pathsep.join(map(str, ranks.PACKAGES))
    command = [sys.executable, "-c", IMPORTED_BEFORE]
    done = run_to_end(command, rank_environment({"PYTHONPATH": path, **alone}), 120)
    assert done.returncode == 0, done.stdout
    assert re.findall(r"^(?:hvd_ext|gloo|undefined|\d)$", done.stdout, re.MULTILINE) == [
        *("hvd_ext", "1"),
        *("hvd_ext", "2"),
    ], done.stdout


@pytest.mark.long
@pytest.mark.parametrize("framework", ["accelerate", "transformers", "lightning"])
def test_frameworks_learn_the_same(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    script = ROOT / "examples" / "frameworks" / f"with_{framework}.py"
    stock = tmp_path / "stock.py"
    stock.write_text(re.sub(r"(import )?hvd_ext\.c10d.*\n", "", script.read_text()))
    assert "hvd_ext.c10d" not in stock.read_text()
    losses = []
    packages = os.pathsep.join([*map(str, ranks.PACKAGES), os.environ.get("PYTHONPATH", "")])
    for one in (stock, script):
        command = [sys.executable, one] if framework == "lightning" else [*TORCHRUN, one]
        done = subprocess.run(
            [*map(str, command)],
            env=rank_environment({"PYTHONPATH": packages, "HF_HUB_OFFLINE": "1"}),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        losses += re.findall(r"^loss (\S+)", done.stdout, re.MULTILINE)
        assert ("hvd_ext: active" in done.stderr) == (one == script)
    assert losses[0] == losses[1]
    assert len(losses) == 2


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("torch_")}


@pytest.mark.long
@pytest.mark.parametrize("framework", ["accelerate", "transformers", "lightning"])
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("killed", r"rank +: 1 .*\n.*exitcode +: -9"),
        ("stopped", r"rank 1 \(.*\) did not reach a gradient exchange within 3 s"),
        ("late", r"rank 1 \(.*\) did not reach a gradient exchange within 3 s"),
        ("raising", r"ValueError: loss is NaN"),
    ],
)
def test_a_framework_ends_when_a_rank_fails(framework: str, how: str, says: str) -> None:
    pytest.importorskip(framework)
    packages = os.pathsep.join([*map(str, ranks.PACKAGES), os.environ.get("PYTHONPATH", "")])
    variables = {"PYTHONPATH": packages, "HVD_EXT_STALL_TIMEOUT_S": "3"}
    before = shared_memory()
    program = ["tests/programs/c10d/framework_fault.py", framework, how]
    done = run_to_end([*TORCHRUN, *HVD_EXT, *program], rank_environment(variables), 150)
    assert done.returncode != 0, done.stdout
    assert re.search(says, done.stdout), done.stdout
    assert "all steps done" not in done.stdout
    assert shared_memory() <= before
