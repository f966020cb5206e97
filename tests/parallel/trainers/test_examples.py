"""The scripts of examples/ run as they stand, on two ranks, and show what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.ranks import ROOT, environment

EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent


def run(script: Path, start: str = "") -> str:
    """Start it by `start`, or as its docstring tells; returns what it prints."""
    (command,) = re.findall(r"^Run it: (.+)$", (EXAMPLES / script.name).read_text(), re.MULTILINE)
    if start:
        command = f"{start} examples/{script.name}"
    words = command.replace(f"examples/{script.name}", str(script)).split()
    done = subprocess.run(
        words,
        cwd=ROOT,
        # Tests beside this one may want the cores.
        env=environment({"OMPI_MCA_mpi_yield_when_idle": "1"})
        | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_they_are_short() -> None:
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) == 4
    assert all(len(script.read_text().splitlines()) < 60 for script in scripts)


def accuracy(script: Path) -> str:
    pytest.importorskip("sklearn")
    (told,) = re.findall(r"2 ranks read ([\d.]+)%", run(script))
    return told


@pytest.mark.long
def test_digits_are_learnt() -> None:
    assert float(accuracy(EXAMPLES / "digits.py")) > 95


@pytest.mark.long
def test_digits_are_learnt_the_same_with_horovods_own_exchange(tmp_path: Path) -> None:
    script = (EXAMPLES / "digits.py").read_text()
    stock = tmp_path / "digits.py"
    stock.write_text(script.replace("import hvd_ext.torch as hvd", "import horovod.torch as hvd"))
    assert stock.read_text() != script
    assert accuracy(EXAMPLES / "digits.py") == accuracy(stock)


@pytest.mark.long
def test_a_shared_sample_is_learnt_as_a_whole_one() -> None:
    told = run(EXAMPLES / "split_sample.py")
    losses = [
        tuple(map(float, pair)) for pair in re.findall(r"loss ([\d.]+) split, ([\d.]+)", told)
    ]
    assert len(losses) == 5
    assert losses[-1][0] < losses[0][0]
    assert all(split == pytest.approx(whole, rel=1e-4) for split, whole in losses)


@pytest.mark.long
def test_a_planned_allreduce_sums_as_mpi_does() -> None:
    told = run(EXAMPLES / "planned_allreduce.py")
    assert re.findall(r"(\d+) bytes: planned [\d.]+ us, mpi4py [\d.]+ us", told) == [
        *("1024", "262144", "4194304")
    ]


@pytest.mark.long
@pytest.mark.parametrize("start", ["", "torchrun --standalone --nproc-per-node 2"])
def test_ddp_learns_in_shared_memory(start: str) -> None:
    told = run(EXAMPLES / "ddp.py", start)
    assert "reduced where they lie" in told
    first, last = map(float, re.findall(r"loss ([\d.]+)", told))
    assert last < first / 2
