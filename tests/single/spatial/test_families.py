"""Families that users split equal the unsplit models; what cannot be split is refused by name."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch

from hvd_ext.spatial import GridShape, ProcessGrid, UnsupportedError, convert, scatter, verify
from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.exchange.communicator import Communicator
from tests.support.spatial.families import FAMILIES, SOLID, CogVideoX, Wan

FLAT = [GridShape(height=2), GridShape(width=4), GridShape(height=2, width=2)]
DEEP = [GridShape(depth=2), GridShape(depth=4), GridShape(depth=2, height=2, width=2)]


def where_gathered(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "every rank" in line]


@pytest.mark.parametrize("name", FAMILIES)
def test_split_is_unsplit(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, shape = FAMILIES[name]
    torch.manual_seed(0)
    model = make()
    for grid in FLAT + DEEP * (name in SOLID):
        report = verify(model, shape, grid)
        assert report.passed, report
    assert not where_gathered(caplog)


GATHERED = {
    "attention over a frame": (lambda: Wan(attention=True), "encoder.5"),
    "cells in the batch": (lambda: CogVideoX(as_published=True), "CogVideoX"),
}


@pytest.mark.parametrize("what", GATHERED)
def test_what_merges_space_is_refused_or_takes_the_whole(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, layer = GATHERED[what]
    shape = (1, 3, 5, 18, 22)
    torch.manual_seed(0)
    model = make()
    report = verify(model, shape, GridShape(height=2))
    assert report.passed, report
    assert any(f"layer '{layer}" in line for line in where_gathered(caplog)), caplog.messages

    def run(comm: Communicator) -> None:
        grid = ProcessGrid(height=2, comm=comm)
        convert(copy.deepcopy(model), grid, allow_gather=False)(scatter(torch.ones(shape), grid))

    with pytest.raises(UnsupportedError, match=f"layer '{layer}.*merges or cuts split dims"):
        emulator.run(2, run)


@pytest.mark.parametrize(
    ("name", "layer", "why"),
    [("Wan", "encoder.2.resample.1", ""), ("CogVideoX", "first", "cat along dim 2")],
)
def test_split_time_is_refused_by_name(name: str, layer: str, why: str) -> None:
    make, shape = FAMILIES[name]
    with pytest.raises(UnsupportedError, match=f"layer '{layer}.*{why}"):
        verify(make(), shape, GridShape(depth=2))
