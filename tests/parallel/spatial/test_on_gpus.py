"""Exchanges of spatial layers between GPUs, on the stand-in for CuPy: no GPU is needed.

Each mutant is a mistake in the order that events keep, in the use of memory, or in what is sent.
The check beside it must see it.
"""

from __future__ import annotations

import gc
import itertools
import logging
import weakref
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F

from hvd_ext.spatial import ProcessGrid, convert, scatter
from hvd_ext.spatial.exchange.communicator import MpiCommunicator
from hvd_ext.spatial.exchange.device import halos, moves, self_check, sums
from hvd_ext.spatial.exchange.device.peers import Peers
from hvd_ext.spatial.layers.windows import ways
from testbed.cuda_stand_in import streams
from tests.ranks.asserts import parallel_assert
from tests.support.mutants import mutate
from tests.support.spatial.on_stand_in import OnStandIn, pretend_nodes, rounds, take_for_gpus
from tests.support.spatial.random_layers import FAMILIES, cases
from tests.support.spatial.split_layers import check
from tests.support.spatial.split_models import UNet

COUNTS = {2: 4, 4: 4}
FOUR = pytest.param(4, marks=pytest.mark.long)
GRIDS = {
    2: [(1, 1, 2), (1, 2, 1), (2, 1, 1)],
    4: [(1, 1, 4), (1, 2, 2), (2, 2, 1)],
}


@pytest.fixture(autouse=True)
def _on_gpus(comm, monkeypatch):
    # Streams are late: enough rounds to begin with take seconds.
    monkeypatch.setattr(self_check, "ROUNDS", 2)
    choose(monkeypatch, "overlapped")
    take_for_gpus(monkeypatch, comm.rank)
    yield
    gc.collect()
    streams.forget_errors()


def choose(patch: pytest.MonkeyPatch, way: str) -> None:
    """Have every layer computed in one way: measured, another run may take another."""
    times = itertools.cycle((1.0, 2.0) if way == "overlapped" else (2.0, 1.0))
    patch.setattr(ways, "_best_s", lambda local, run: next(times))


@pytest.mark.ranks(2, FOUR)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("ranks_per_node", "way"), [(4, "overlapped"), (1, "whole")])
def test_split_layers_compute_what_whole_ones_do(comm, monkeypatch, family, ranks_per_node, way):
    """On random grids of all ranks: output, gradients of the input and of parameters."""
    pretend_nodes(monkeypatch, ranks_per_node, comm)
    choose(monkeypatch, way)
    made, opened = OnStandIn(comm), OnStandIn.opened
    for case, expected in cases(family, COUNTS[comm.size], comm.size, [comm.size]):
        check(case, expected, made)
    parallel_assert(comm, OnStandIn.opened > opened, "none went between GPUs")


def trained(comm, grid, on_gpus: bool):
    """Weights and statistics after three steps in 32 bits, in which GPUs take the sums."""
    made = OnStandIn(comm) if on_gpus else MpiCommunicator(comm)
    torch.manual_seed(3)
    grid = ProcessGrid(*grid, comm=made)
    whole = torch.randn(2, 3, 20, 22)
    model = UNet()
    if grid.shape.depth > 1:
        whole = torch.randn(2, 3, 12, 10, 8)
        model = torch.nn.Sequential(
            torch.nn.Conv3d(3, 5, 3, padding=1),
            torch.nn.BatchNorm3d(5),
            torch.nn.ReLU(),
            torch.nn.Conv3d(5, 4, 3, stride=2),
        )
    model = convert(model, grid)
    learner = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        learner.zero_grad()
        model(scatter(whole, grid)).square().mean().backward()
        for parameter in model.parameters():
            parameter.grad = grid.space.allreduce(parameter.grad) / comm.size
        learner.step()
    if on_gpus:
        assert grid.space.is_direct
    return model.state_dict()


@pytest.mark.ranks(2, FOUR)
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("ranks_per_node", [4, 1])
def test_training_has_the_bits_of_the_host(comm, monkeypatch, number, ranks_per_node):
    pretend_nodes(monkeypatch, ranks_per_node, comm)
    grid = GRIDS[comm.size][number]
    found = trained(comm, grid, on_gpus=True)
    expected = trained(comm, grid, on_gpus=False)
    differ = [name for name, value in expected.items() if not torch.equal(value, found[name])]
    parallel_assert(comm, not differ, differ)


@pytest.mark.ranks(2, 4)
def test_gpus_that_are_late_exchange_the_right_bits(comm, monkeypatch):
    for ranks_per_node in (4, 1):
        with monkeypatch.context() as patch:
            pretend_nodes(patch, ranks_per_node, comm)
            wrong = rounds(comm, patch)
        parallel_assert(comm, not wrong, wrong)


@pytest.mark.ranks(2)
def test_an_exchange_that_nobody_waits_for_is_over_two_later(comm):
    made, peer, kept = OnStandIn(comm), 1 - comm.rank, []
    for number in range(5):
        sent, received = torch.full((3,), float(number)), torch.empty(3)
        kept += [sent, received]  # as torch's memory for a GPU stays until its stream comes there
        wait = made.start([(peer, [sent])], [(peer, received)], sent)
        if number == 4:
            wait()
    parallel_assert(comm, received.tolist() == [4.0] * 3, received)


@pytest.mark.ranks(2)
def test_gpus_that_are_wrong_on_one_rank_are_refused_on_all(comm, monkeypatch, caplog):
    monkeypatch.setattr(self_check, "ROUNDS", 12)
    if comm.rank == 1:
        mutate(monkeypatch, Peers, "lead", "self.runtime.streamWaitEvent(stream, self._done)", "0")
    for _ in range(5):
        made = OnStandIn(comm)
        with caplog.at_level(logging.WARNING, "hvd_ext"):
            total = made.allreduce(torch.full((5,), float(comm.rank)))
        assert total.tolist() == [1.0] * 5
        if not made.is_direct:
            break
    parallel_assert(comm, not made.is_direct, "the check did not notice")
    lines = [record.getMessage() for record in caplog.records]
    said = [line for line in lines if "go through the host's memory" in line]
    parallel_assert(comm, len(said) == (comm.rank == 0), lines)


@pytest.mark.ranks(2)
def test_the_variable_leaves_halos_to_the_host(comm, monkeypatch):
    monkeypatch.setenv("HVD_EXT_DEVICE_HALOS", "0")
    made = OnStandIn(comm)
    total = made.allreduce(torch.ones(2))
    parallel_assert(comm, total.tolist() == [2, 2] and not made.is_direct, total)


Mutation = Callable[[pytest.MonkeyPatch], None]


def changed(where: object, name: str, line: str, other: str = "pass") -> Mutation:
    return lambda patch: mutate(patch, where, name, line, other)


def late(comm, patch) -> bool:
    return not rounds(comm, patch)


def holding(comm, patch) -> bool:
    """Memory of torch's is kept until torch's stream waits for the kernel that reads it."""
    made, peer = OnStandIn(comm), 1 - comm.rank if comm.rank < 2 else None
    sent, received = torch.ones(5), torch.zeros(5)
    memory = weakref.ref(sent)
    sends = [] if peer is None else [(peer, [sent])]
    direct = made._direct(received)
    finish = direct.halos.start(sends, [] if peer is None else [(peer, received)])
    del sent, sends
    kept = memory()
    held = kept is not None
    try:
        finish()
        # From here on torch's stream keeps it, which on the stand-in only `kept` does.
        made._settle(received)
    except RuntimeError:  # the kernel came when the memory was gone
        return False
    del kept
    gc.collect()
    return peer is None or (held and memory() is None)


@pytest.mark.ranks(2)
def test_memory_is_kept_until_it_is_packed(comm, monkeypatch):
    parallel_assert(comm, holding(comm, monkeypatch), "freed too early, or never")


def corners(comm, patch) -> bool:
    """A layer whose every output at a corner needs the diagonal neighbor's."""
    made = OnStandIn(comm)
    whole = torch.arange(144.0).view(1, 1, 12, 12).double()
    grid = ProcessGrid(height=2, width=2, comm=made)
    weight = torch.ones(1, 1, 3, 3).double()
    split = F.conv2d(scatter(whole, grid), weight, padding=1)
    expected = scatter(F.conv2d(whole, weight, padding=1), grid)
    return torch.equal(split.local, expected.local)


_WAIT = "self.runtime.streamWaitEvent"
_EVENTS = "peers.runtime.eventSynchronize(events["
_RECORD = "self.runtime.eventRecord"
_WRITE = "write_word(self._words[self.comm.rank] + 8 * event, number)"
MUTANTS: dict[str, tuple[Mutation, Callable[..., bool], int]] = {
    "a halo is used before its event": (
        *(changed(halos.Halos, "finish", "peers.hear(peer, SENT + slot", "(peer, SENT + slot"),),
        *(late, 2),
    ),
    "events of peers are not waited for": (
        *(changed(Peers, "hear", f"{_WAIT}(self.stream.ptr, self.events[rank][event])"), late, 2),
    ),
    "torch goes on before the halo is there": (
        *(changed(Peers, "lead", f"{_WAIT}(stream, self._done)"), late, 2),
    ),
    "faces are packed before torch has made them": (
        *(changed(Peers, "follow", f"{_WAIT}(self.stream.ptr, self._given)"), late, 2),
    ),
    "a number is written before its event is recorded": (
        *(
            changed(
                Peers, "say", "self.runtime.eventRecord", f"{_WRITE}; self.runtime.eventRecord"
            ),
        ),
        *(late, 2),
    ),
    "memory of a halo is used again too early": (
        *(changed(halos.Halos, "start", "if channel.last[slot]:", "if False:"), late, 2),
    ),
    "memory that is sent is freed too early": (
        *(changed(halos._Exchange, "__init__", "list(sends)", "[]"), holding, 2),
    ),
    "summands are not waited for": (
        *(changed(sums.Sums, "_part", "for rank in others:", "for rank in []:"), late, 2),
    ),
    "MPI sends before the GPU has packed": (
        *(changed(halos.Halos, "_exchange_staged", f"{_EVENTS}SENT + slot])"), late, 1),
    ),
    "MPI receives before the GPU has read": (
        *(changed(halos.Halos, "_exchange_staged", f"{_EVENTS}TAKEN + slot])"), late, 1),
    ),
}


@pytest.mark.ranks(4)
def test_a_missed_corner_is_noticed(comm, monkeypatch):
    parallel_assert(comm, corners(comm, monkeypatch), "wrong")
    monkeypatch.setattr(self_check, "check", lambda *_: None)
    one_cell = "if 0 not in move.shape", "if move.shape != (1, 1, 1, 1)"
    mutate(monkeypatch, moves, "table", *one_cell)
    passed = comm.allgather(corners(comm, monkeypatch))
    parallel_assert(comm, not any(passed), passed)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_killed(comm, monkeypatch, mutant):
    mutation, notices, ranks_per_node = MUTANTS[mutant]
    mutation(monkeypatch)
    # On a busy machine the hosts may be later than the GPUs that are to be late.
    for _ in range(5):
        with monkeypatch.context() as patch:
            pretend_nodes(patch, ranks_per_node, comm)
            passed = notices(comm, patch)
        if not all(comm.allgather(passed)):
            return
        gc.collect()
        streams.forget_errors()
    raise AssertionError("the check did not notice")
