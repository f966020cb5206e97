"""What tests with ranks share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.launch.on_every_mpi import IN_TEST_OR_LONG, bin_of

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.job.topology import Topology


@pytest.fixture(params=IN_TEST_OR_LONG)
def library(request: pytest.FixtureRequest) -> Path:
    """The bin folder of an environment with an MPI and mpi4py.

    A test that not every library can do says so: `@pytest.mark.needs("ucx")`. One that `make test`
    is to run on all of them: `@pytest.mark.parametrize("library", LIBRARIES, indirect=True)`.
    """
    marker = request.node.get_closest_marker("needs")
    return bin_of(request.param, *(marker.args if marker else ()))


@pytest.fixture
def nodes(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Topology]:
    """`nodes(k)`: from now on each k ranks are a node to optimizers that are made."""
    # Not everywhere is there a torch, and outside ranks no MPI may start.
    from hvd_ext.torch.job import lifecycle
    from tests.support.arena.pretended_nodes import pretend

    def of(ranks_per_node: int) -> Topology:
        pretended = pretend(comm, ranks_per_node)
        monkeypatch.setattr(lifecycle, "topology", lambda: pretended)
        return pretended

    return of
