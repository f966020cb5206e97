"""Random layers on an emulated grid, split against unsplit: most of them bit for bit.

HVD_EXT_TEST_SWEEP=20 takes twenty times as many.
"""

from __future__ import annotations

import os
import time
import warnings

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

from hvd_ext.errors import StallError
from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.exchange.communicator import Communicator
from hvd_ext.spatial.layers.windows import windowed
from tests.support.spatial import random_layers
from tests.support.spatial.split_layers import check

TIMES = int(os.environ.get("HVD_EXT_TEST_SWEEP", "1"))
# Convolutions first: that is what the layers are for.
COUNTS = {
    "conv": 940,
    "transposed": 480,
    "max_pool": 300,
    "average_pool": 120,
    "adaptive": 80,
    "pad": 200,
    "interpolate": 110,
    "shuffle": 80,
    "norm": 120,
    "loss": 80,
}


def check_family(family: str, count: int, seed: int) -> None:
    """Random cases of one kind of layer, on grids of 1 to 8 ranks."""
    with warnings.catch_warnings():
        # torch's, about 'same' padding of even kernels.
        warnings.simplefilter("ignore", UserWarning)
        drawn = random_layers.cases(family, count, seed, range(1, 9))
    for number, (case, _) in enumerate(drawn):

        def rank(comm: Communicator, number: int = number) -> None:
            check(drawn[number][0], drawn[number][1], comm, overlap=number % 2 == 0)

        try:
            emulator.run(case.size, rank)
        except Exception as error:
            raise AssertionError(case.text) from error


PARTS = pytest.mark.parametrize(
    "part", [pytest.param(4, id="a fourth"), pytest.param(1, id="all", marks=pytest.mark.long)]
)


@PARTS
@pytest.mark.parametrize("family", COUNTS)
def test_split_layers_compute_what_whole_ones_do(family: str, part: int) -> None:
    check_family(family, COUNTS[family] * TIMES // part, seed=2026)


@PARTS
@pytest.mark.parametrize("family", ["conv", "average_pool"])
def test_small_shards_summed_as_large_ones_are(
    family: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of large shards, taken by all that have an interior."""
    taken = []
    sums = windowed._by_sums
    monkeypatch.setattr(windowed, "_WORTH", 0.0)
    monkeypatch.setattr(windowed, "_SUMS_WORTH", 0.0)
    monkeypatch.setattr(windowed, "_by_sums", lambda *given: (taken.append(1), sums(*given))[1])
    check_family(family, 240 * TIMES // part, seed=7)
    assert len(taken) >= 100 // part


def test_every_kind_of_layer_is_drawn() -> None:
    assert set(COUNTS) == set(random_layers.FAMILIES)
    exact = ("conv", "transposed", "max_pool", "pad", "shuffle")
    assert sum(COUNTS[family] for family in exact) >= 2000


def test_a_ranks_error_reaches_the_caller_and_no_rank_hangs() -> None:
    def rank(comm: Communicator) -> None:
        if comm.rank == 2:
            raise KeyError("rank 2 has no such thing")
        import torch

        comm.allreduce(torch.ones(1))

    begun = time.monotonic()
    with pytest.raises(KeyError, match="rank 2"):
        emulator.run(4, rank)
    assert time.monotonic() - begun < 30


def test_a_message_that_never_arrives_is_named() -> None:
    def rank(comm: Communicator) -> None:
        import torch

        if comm.rank == 0:
            comm.start([], [(1, torch.empty(1))], torch.empty(0))()

    with pytest.raises(StallError, match="rank 1 to rank 0"):
        emulator.run(2, rank)


def test_a_message_that_is_not_received_is_an_error() -> None:
    def rank(comm: Communicator) -> None:
        import torch

        if comm.rank == 0:
            comm.start([(1, [torch.ones(1)])], [], torch.empty(0))()

    with pytest.raises(AssertionError, match="1 messages"):
        emulator.run(2, rank)
