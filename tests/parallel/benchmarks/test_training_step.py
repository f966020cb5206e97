"""benchmarks.training_step: what it reports, and that a failing arm ends all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.ranks import ROOT, environment

FEW = ["--model", "small_2000", "--rounds", "2", "--steps", "2"]
MARK = "HVD_TEST_TRAINING_STEP"


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.training_step", *FEW, *words],
        cwd=ROOT,
        # Tests beside this one may want the cores.
        env=environment({MARK: str(os.getpid()), "OMPI_MCA_mpi_yield_when_idle": "1", **variables}),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def left() -> list[str]:
    """Command lines of the processes that `run` has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={os.getpid()}\0".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_text())
        except OSError:  # another user's, or gone
            continue
    return found


@pytest.mark.long
def test_figures_and_picture(tmp_path: Path) -> None:
    arms = ("alone", "horovod", "hvd_ext")
    words = [word for arm in arms for word in ("--arm", arm)]
    figures, picture = tmp_path / "f.json", tmp_path / "p.png"
    # What is set here is not what Horovod as it comes gets.
    done = run(*words, "--json", str(figures), "--plot", str(picture), MALLOC_TOP_PAD_="1")
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 0
    result = json.loads(figures.read_text())
    assert result["machine"]["cores"]
    (case,) = result["cases"]
    assert (case["model"], case["ranks"]) == ("small_2000", 2)
    assert (case["parameters"], case["elements"]) == (2000, 128_000)
    assert list(case["arms"]) == [*arms]
    for arm in case["arms"].values():
        of = arm["step_ms"]
        assert 0 < of["low"] <= of["median"] <= of["high"]
        assert of["n"] > 2
        assert arm["freed_memory"]
        assert arm["memory_bytes"] > 4 * 128_000
        parts = (arm[f"memory_{kind}_bytes"] for kind in ("anonymous", "shared"))
        assert sum(parts) == arm["memory_bytes"]
        assert sum(arm["made_of"]["phases_ms"].values()) > 0
        training = arm["made_of"]["threads"]["training"]
        assert training["cpu_ms"] > 0
        assert {"run_queue_wait_ms", "page_faults", "involuntary_switches"} < training.keys()
    # The gradients lie in memory that the ranks share.
    assert case["arms"]["hvd_ext"]["memory_shared_bytes"] >= 4 * 128_000 / 2
    threads = case["arms"]["hvd_ext"]["made_of"]["threads"]
    assert {"hvd_ext progress", "Horovod background"} < threads.keys()
    assert case["arms"]["horovod"]["variables"] == {}
    assert case["arms"]["hvd_ext"]["losses_equal_to_the_bit"]
    assert case["arms"]["hvd_ext"]["last_loss"] < case["arms"]["hvd_ext"]["first_loss"]
    assert case["overhead_ms"].keys() == {"horovod", "hvd_ext"}
    for name in ("efficiency", "ratio_vs_horovod"):
        assert case[name] > 0
        assert case[f"{name}_of_rounds"]["n"] == 2
    assert left() == []


@pytest.mark.long
def test_an_arm_that_fails_ends_the_others() -> None:
    done = run("--arm", "alone", "--arm", "ddp", GLOO_SOCKET_IFNAME="absent0")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("training_step: error: small_2000 with ddp failed: RuntimeError: ")
    assert "Traceback" not in done.stderr
    assert left() == []
