"""Spatial layers on real MPI: the emulator's cases, adjoints, and an absent rank."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings

from hvd_ext.errors import StallError
from hvd_ext.spatial import ProcessGrid, scatter
from tests.support.spatial import adjoint
from tests.support.spatial.random_layers import FAMILIES, cases
from tests.support.spatial.split_layers import check

# How many cases of each kind of layer, by the number of ranks.
COUNTS = {2: 20, 3: 12, 4: 12, 6: 8, 8: 6}
# The emulator has the same cases on all of them.
IN_LONG = [pytest.param(size, marks=pytest.mark.long) for size in (2, 3, 6, 8)]
TIMES = int(os.environ.get("HVD_EXT_TEST_SWEEP", "1"))
Launch = Callable[..., "CompletedProcess[str]"]


@pytest.mark.ranks(4, *IN_LONG, timeout_s=100 * TIMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_split_layers_compute_what_whole_ones_do(comm, family: str) -> None:
    """On random grids of all ranks."""
    drawn = cases(family, COUNTS[comm.size] * TIMES, comm.size, [comm.size])
    for number, (case, expected) in enumerate(drawn):
        check(case, expected, comm, overlap=number % 2 == 0)


@pytest.mark.ranks(3, IN_LONG[0])
def test_every_exchange_has_its_adjoint(comm) -> None:
    # The same cases on every rank; the first that fails ends the test.
    @settings(
        max_examples=60,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(adjoint.cases([comm.size]))
    def scenario(case: adjoint.Case) -> None:
        adjoint.check_exchange(comm, case)
        adjoint.check_maps(comm, case)

    scenario()


@pytest.mark.ranks(3)
def test_an_absent_rank_is_named_by_world_rank_and_host(comm, monkeypatch) -> None:
    """On a grid that numbers the ranks the other way round."""
    monkeypatch.setenv("HVD_EXT_STALL_TIMEOUT_S", "2")
    grid = ProcessGrid(width=3, comm=comm.Split(key=-comm.rank))
    x, weight = scatter(torch.ones(1, 1, 12), grid), torch.ones(1, 1, 3)
    if comm.rank == 1:
        host = re.escape(socket.gethostname())
        with pytest.raises(StallError, match=rf"^rank 0 \({host}\) did not reach a halo exchange"):
            F.conv1d(x, weight, padding=1)
    elif comm.rank == 2:
        F.conv1d(x, weight, padding=1)
    comm.Barrier()


@pytest.mark.long
def test_an_absent_rank_may_end_the_job(launch: Launch) -> None:
    done = launch(
        2,
        ["tests/programs/spatial/spatial_absent.py"],
        env={"HVD_EXT_STALL_TIMEOUT_S": "2"},
        timeout=45,
    )
    assert done.returncode == 75, done.stdout
    assert f"ended: rank 0 ({socket.gethostname()}) did not reach a halo exchange" in done.stdout
