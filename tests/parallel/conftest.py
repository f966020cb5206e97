"""What tests with ranks share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.on_every_mpi import LIBRARIES, bin_of


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Path:
    """The bin folder of an environment with an MPI and mpi4py.

    A test that not every library can do says so: `@pytest.mark.needs("ucx")`.
    """
    marker = request.node.get_closest_marker("needs")
    return bin_of(request.param, *(marker.args if marker else ()))
