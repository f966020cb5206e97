"""What tests with ranks share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.on_every_mpi import LIBRARIES, bin_of


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Path:
    """The bin folder of an environment with an MPI and mpi4py."""
    return bin_of(request.param)
