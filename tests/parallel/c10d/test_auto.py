"""Programs that ask for Gloo, run over hvd_ext: the same weights, and what serves them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed import ranks
from tests.support.launch.launching import ROOT, rank_environment, run_to_end

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
HVD_EXT = ["-m", "hvd_ext.c10d"]
PROGRAM = "tests/programs/c10d/asks_for_gloo.py"
HOROVOD = "tests/programs/optimizer/plain_horovod.py"
STARTS_ITS_RANKS = "tests/programs/c10d/starts_its_ranks.py"


def torchrun(*words: str) -> tuple[str, str]:
    path = os.pathsep.join(map(str, ranks.PACKAGES))
    done = run_to_end([*TORCHRUN, *words], rank_environment({"PYTHONPATH": path}), 120)
    assert done.returncode == 0, done.stdout
    (weights,) = re.findall(r"weights (\S+)", done.stdout)
    return weights, done.stdout


@pytest.mark.parametrize(
    ("how", "serves", "says"),
    [
        ("as it is", "hooks ['hvd_ext_hook']", "active: exchanges gradients of 4 parameters"),
        *(
            pytest.param(how, serves, says, marks=pytest.mark.long)
            for how, serves, says in (
                ("by default", "hooks ['hvd_ext_hook']", "active: exchanges gradients of 4 par"),
                ("own hook", "hooks ['fp16_compress_hook']", "a model keeps its own communication"),
                ("sparse", "hooks []", "a model stays with its process group: module '0' has spa"),
                ("sharded", "hooks []", "active: exchanges shards and gradients of FSDP2"),
                ("only-a-group", "hooks []", ""),
            )
        ),
    ],
)
def test_a_program_that_asks_for_gloo_learns_the_same(how: str, serves: str, says: str) -> None:
    want, stock = torchrun(PROGRAM, how)
    assert "backend gloo" in stock or how == "by default"
    weights, told = torchrun(*HVD_EXT, PROGRAM, how)
    assert weights == want
    assert f"backend hvd_ext {serves}" in told
    assert told.count("hvd_ext: serves the process group of 2 ranks in place of Gloo") == 1
    assert told.count("hvd_ext: ") == 1 + bool(says), told
    assert says in told


def by_plain_python(*words: str, stall_s: int) -> str:
    path = os.pathsep.join(map(str, ranks.PACKAGES))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    variables = {"PYTHONPATH": path, "HVD_EXT_STALL_TIMEOUT_S": str(stall_s)}
    return run_to_end([sys.executable, *words, port], rank_environment(variables), 240).stdout


@pytest.mark.parametrize(
    "how",
    [
        "again",
        *(
            pytest.param(x, marks=pytest.mark.long)
            for x in ("again, unbuffered", "spawn", "elastic")
        ),
    ],
)
def test_a_program_that_starts_its_ranks_itself_is_served(how: str) -> None:
    output = by_plain_python(*HVD_EXT, STARTS_ITS_RANKS, how, stall_s=200)
    assert output.count("backend hvd_ext hooks ['hvd_ext_hook']") == 2, output


def test_a_rank_without_hvd_ext_is_what_the_error_names() -> None:
    output = by_plain_python(*HVD_EXT, STARTS_ITS_RANKS, "otherwise", stall_s=3)
    assert re.search(r"error: rank 1 did not reach .* runs without hvd_ext never comes", output)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        *(
            pytest.param(command, says, marks=pytest.mark.long)
            for command, says in (
                (f"hvd_ext {PROGRAM} only-a-group", "python -m hvd_ext serves Horovod; for torch."),
                (f"hvd_ext.c10d {HOROVOD} /dev/null", "the script uses Horovod: start it with pyt"),
            )
        ),
        ("hvd_ext.c10d -m this", "the script made no process group, so each of the 2 processes"),
    ],
)
def test_a_script_that_is_not_served_is_named(launch: Any, command: str, says: str) -> None:
    done = launch(2, ["-m", *command.split()])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("hvd_ext: note: ") == 1, done.stdout
    assert says in done.stdout


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


@pytest.mark.long
@pytest.mark.timeout(700)  # ranks import two frameworks, twice
@pytest.mark.parametrize("kind", ["ddp", "sharded"])
@pytest.mark.parametrize("framework", ["accelerate", "transformers", "lightning", "fabric"])
def test_whole_trainings_have_gloos_bits(framework: str, kind: str, tmp_path: Path) -> None:
    pytest.importorskip("lightning" if framework == "fabric" else framework)
    packages = os.pathsep.join([*map(str, ranks.PACKAGES), os.environ.get("PYTHONPATH", "")])
    variables = rank_environment({"PYTHONPATH": packages, "HF_HUB_OFFLINE": "1"})
    results = []
    for module in ([], HVD_EXT):
        program = ["tests/programs/c10d/framework_training.py", framework, kind]
        folder = str(tmp_path / f"kept{len(results)}")
        done = run_to_end([*TORCHRUN, *module, *program, folder], variables, 300)
        assert done.returncode == 0, done.stdout
        (found,) = re.findall(r"^found (.*)$", done.stdout, re.MULTILINE)
        assert ("hvd_ext: active" in done.stdout) == (module == HVD_EXT), done.stdout
        results.append(found.split())
    assert results[0] == results[1]
    weights = [each for each in results[0] if each.startswith("weights:")]
    # A training that resumes ends as one that does not.
    assert len(weights) == 1 + ((framework, kind) != ("transformers", "sharded"))
    assert len(set(weights)) == 1


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
