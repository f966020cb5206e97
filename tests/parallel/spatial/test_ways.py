"""The way to compute a layer on GPUs: measured once for a shape, and the same on all ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F

from hvd_ext.spatial import ProcessGrid, scatter
from hvd_ext.spatial.exchange.communicator import MpiCommunicator
from hvd_ext.spatial.layers.windows import ways
from tests.ranks.asserts import parallel_assert
from tests.support.spatial.on_stand_in import take_for_gpus


@pytest.mark.ranks(2)
@pytest.mark.parametrize("overlaps", [True, False])
def test_ranks_take_the_way_that_suits_the_slowest(comm, monkeypatch, overlaps):
    measured = []

    def best_s(local, run):
        run()
        measured.append(len(measured))
        is_overlapped = len(measured) % 2 == 1
        # Rank 1 decides: rank 0 finds the other way faster by less.
        return 1.0 + (is_overlapped == (comm.rank == (0 if overlaps else 1))) * (1 + comm.rank)

    take_for_gpus(monkeypatch, comm.rank)
    monkeypatch.setattr(ways, "_best_s", best_s)
    # Only what is measured is of interest: messages go by MPI.
    grid = ProcessGrid(height=2, comm=MpiCommunicator(comm))
    whole = torch.arange(2.0 * 12 * 5).view(1, 2, 12, 5)
    weight = torch.ones(3, 2, 3, 3)
    for _ in range(3):
        found = F.conv2d(scatter(whole, grid), weight, padding=1)
    expected = scatter(F.conv2d(whole, weight, padding=1), grid)
    parallel_assert(comm, torch.equal(found.local, expected.local), "the output")
    parallel_assert(comm, len(measured) == 2, measured)
    (way,) = grid.ways.values()
    parallel_assert(comm, way.overlaps == overlaps, str(way))
    word = "overlapped" if overlaps else "whole"
    parallel_assert(comm, f": {word} (" in grid.explain(), grid.explain())


@pytest.mark.ranks(2)
def test_nothing_is_measured_without_a_gpu_or_overlap(comm, monkeypatch):
    whole, weight = torch.ones(1, 1, 8), torch.ones(1, 1, 3)
    on_cpu = ProcessGrid(width=2, comm=MpiCommunicator(comm))
    F.conv1d(scatter(whole, on_cpu), weight)
    take_for_gpus(monkeypatch, comm.rank)
    off = ProcessGrid(width=2, comm=MpiCommunicator(comm), overlap=False)
    F.conv1d(scatter(whole, off), weight)
    parallel_assert(comm, not on_cpu.ways and not off.ways, "measured")
    parallel_assert(comm, "no layer was measured" in on_cpu.explain(), on_cpu.explain())
