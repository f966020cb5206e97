"""Every exchange against its adjoint, on emulated ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

from hypothesis import given, settings

from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.geometry.partition import Box
from tests.support.spatial import adjoint

SIZES = range(1, 7)


@settings(max_examples=150)
@given(adjoint.cases(SIZES))
def test_a_halo_exchange_and_its_adjoint(case: adjoint.Case) -> None:
    size = adjoint.math.prod(case.parts)
    emulator.run(size, lambda comm: adjoint.check_exchange(comm, case))


@settings(max_examples=80)
@given(adjoint.cases(SIZES))
def test_what_changes_between_split_and_replicated(case: adjoint.Case) -> None:
    size = adjoint.math.prod(case.parts)
    emulator.run(size, lambda comm: adjoint.check_maps(comm, case))


@given(adjoint.boxes())
def test_assembling_and_taking_apart(boxes: tuple[Box, Box]) -> None:
    adjoint.check_assembling(*boxes)
