"""Spatial layers on real MPI: the emulator's cases, groups of ranks, and an absent rank."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
TIMES = int(os.environ.get("HVD_EXT_TEST_SWEEP", "1"))
Launch = Callable[..., "CompletedProcess[str]"]


@pytest.mark.parametrize(("size", "each"), [(2, 20), (3, 12), (4, 12), (6, 8), (8, 6)])
def test_split_layers_compute_what_whole_ones_do(launch: Launch, size: int, each: int) -> None:
    """Each kind of layer, on random grids of all ranks."""
    done = launch(size, [PROGRAMS / "spatial_cases.py", each * TIMES, size], timeout=100 * TIMES)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == size, done.stdout


def test_groups_precision_refusals_and_events(launch: Launch) -> None:
    done = launch(4, [PROGRAMS / "spatial_groups.py"])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == 4, done.stdout


def test_an_absent_rank_is_named_by_world_rank_and_host(launch: Launch) -> None:
    done = launch(
        2, [PROGRAMS / "spatial_absent.py"], env={"HVD_EXT_STALL_TIMEOUT_S": "2"}, timeout=45
    )
    assert done.returncode == 75, done.stdout
    assert f"ended: rank 0 ({socket.gethostname()}) did not reach a halo exchange" in done.stdout


@pytest.mark.parametrize("size", [2, 3])
def test_every_exchange_has_its_adjoint(launch: Launch, size: int) -> None:
    done = launch(size, [PROGRAMS / "spatial_adjoint.py"])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("ok ") == size, done.stdout
