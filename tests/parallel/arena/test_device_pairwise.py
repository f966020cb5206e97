"""Gradients on GPUs that a node exchanges with one peer at a time, on the stand-in for CuPy.

Each mutant is a mistake in the order of copies and sums, which the rounds must see.
"""

from __future__ import annotations

import gc
import time

import pytest

from hvd_ext.allreduce.table import Row, Table
from hvd_ext.arena.cuda import nccl, pairwise
from hvd_ext.arena.cuda.arena import DeviceArena, carried_by
from hvd_ext.arena.cuda.kernels import SERVED, Kernels
from hvd_ext.arena.cuda.pairwise import Pairwise
from testbed.cuda_stand_in import cuda, runtime, streams
from testbed.cuda_stand_in import nccl as stand_in
from tests.ranks.asserts import parallel_assert
from tests.support.arena.device_on_nodes import TABLE, rounds
from tests.support.arena.pretended_nodes import pretend
from tests.support.mutants import mutate

IN_NODE = carried_by("ipc_pairwise")
# Shards of the longest gradients take several pieces.
SMALL_BYTES = 64 << 10


@pytest.fixture(autouse=True)
def _devices_work():
    yield
    gc.collect()
    streams.forget_errors()


# With a bucket for each gradient, some have fewer vectors than there are ranks.
@pytest.mark.ranks(pytest.param(2, marks=pytest.mark.long), 3, 4)
@pytest.mark.parametrize("dtype", SERVED)
@pytest.mark.parametrize(
    ("bucket_bytes", "scratch_bytes"),
    [(1, SMALL_BYTES), pytest.param(1 << 20, pairwise.SCRATCH_BYTES, marks=pytest.mark.long)],
)
def test_sums_are_exact_though_gpus_are_late(
    topology, monkeypatch, made, dtype, bucket_bytes, scratch_bytes
):
    from tests.support.arena.device_rounds import late_rounds

    monkeypatch.setattr(pairwise, "SCRATCH_BYTES", scratch_bytes)
    wrong = late_rounds(topology, monkeypatch, dtype, bucket_bytes, table=IN_NODE)
    parallel_assert(topology.world, not wrong, wrong)
    ((names, said),) = made
    parallel_assert(topology.world, names == {"ipc_pairwise"}, names)
    buckets = 6 if bucket_bytes == 1 else 1
    parallel_assert(topology.world, f"{buckets} bucket" in said and "pairwise, " in said, said)


@pytest.mark.ranks(2, 4, pytest.param(6, marks=pytest.mark.long))
@pytest.mark.parametrize("dtype", SERVED)
@pytest.mark.parametrize("bucket_bytes", [1, pytest.param(1 << 20, marks=pytest.mark.long)])
def test_on_two_nodes_sums_have_the_bits_of_the_host(comm, monkeypatch, made, dtype, bucket_bytes):
    monkeypatch.setattr(pairwise, "SCRATCH_BYTES", SMALL_BYTES)
    topology = pretend(comm, comm.size // 2)
    table = carried_by("staged_pairwise", TABLE)
    problems = rounds(topology, dtype, bucket_bytes=bucket_bytes, table=table)
    parallel_assert(comm, not problems, problems)
    topology.close()
    parallel_assert(comm, [names for names, _ in made] == [{"staged_pairwise"}], made)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("between", ["nccl", "mpi"])
def test_rails_follow_a_pairwise_exchange(comm, monkeypatch, made, between):
    monkeypatch.setattr(nccl, "_load", lambda: stand_in)
    monkeypatch.setattr(nccl, "_communicators", {})
    monkeypatch.setattr(nccl, "_refusals", {})
    topology = pretend(comm, 2)
    # MPI's sums are in the order of `direct`.
    on_host = Row(0, 0, "host", ((0, "direct" if between == "mpi" else "recursive_doubling"),))
    by = Table((Row(0, 0, "device", ((0, f"{between}_pairwise"),)), on_host), "a test")
    problems = rounds(topology, table=by)
    parallel_assert(comm, not problems, problems)
    topology.close()
    parallel_assert(comm, [names for names, _ in made] == [{f"{between}_pairwise"}], made)


@pytest.mark.ranks(3)
def test_each_peer_comes_after_the_other(topology, monkeypatch):
    from tests.support.arena.device_rounds import Device, layout_of, one_round

    copies = []
    copy = Pairwise._copy

    def noted(self, to, source, length, stream):
        copies.append((to, source, length))
        copy(self, to, source, length, stream)

    monkeypatch.setattr(Pairwise, "_copy", noted)
    monkeypatch.setattr(pairwise, "SCRATCH_BYTES", SMALL_BYTES)
    device, size = Device(topology), topology.world.size
    arena = device.arena(layout_of([50_000]), table=IN_NODE)
    parallel_assert(topology.world, one_round(device, arena), "wrong sums")
    begins = [address + arena.shards[0][0] for address in arena._addresses]
    rank = topology.world.rank
    ordered = [begins[(rank + step) % size] for step in range(size)]
    parallel_assert(topology.world, [source for _, source, _ in copies[:size]] == ordered, copies)
    parallel_assert(topology.world, [to for to, *_ in copies[size : 2 * size]] == ordered, copies)
    # The shard of 66,688 bytes is in pieces of a third of the scratch memory.
    lengths = [length for _, _, length in copies[:: 2 * size]]
    parallel_assert(topology.world, max(lengths) * size <= SMALL_BYTES + size * 64, lengths)
    begin, end = arena.shards[0]
    parallel_assert(topology.world, len(lengths) == 4 and sum(lengths) == end - begin, lengths)
    arena.close()


def _kernels_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """Kernels wait for the copies, on another stream, and the copies to the peers for nothing."""
    queue = Kernels.sum

    def elsewhere(self, dtype, memories, part, scale, stream):
        other, event = cuda.Stream(non_blocking=True), runtime.eventCreateWithFlags(2)
        runtime.eventRecord(event, stream.ptr)
        runtime.streamWaitEvent(other.ptr, event)
        other.launch_host_func(time.sleep, 0.01)
        queue(self, dtype, memories, part, scale, other)

    patch.setattr(Kernels, "sum", elsewhere)


_COPY = "self._copy_from_ranks(first, length, stream.ptr)"
_AHEAD = "for first in range(first, end, self._piece_bytes)"
MUTANTS = {
    "a peer's shard is copied before its event": lambda patch: mutate(
        patch, DeviceArena, "reduce", "else self._events", "else [self._own.events]"
    ),
    "the scratch memory is used again before the sum": lambda patch: mutate(
        patch, Pairwise, "sum", _COPY, f"[{_COPY} {_AHEAD}]"
    ),
    "the sum is copied to peers before it is there": _kernels_elsewhere,
    "the peers' copies are not waited for": lambda patch: mutate(
        patch, DeviceArena, "finish", "self._runtime.streamWaitEvent(stream, events[-1])", "pass"
    ),
    "peers get no sum": lambda patch: mutate(
        patch, DeviceArena, "_sum_in_node", "self._between is None, *by)", "False, *by)"
    ),
}


@pytest.mark.ranks(3)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_killed(topology, monkeypatch, mutant):
    from tests.support.arena import device_rounds

    monkeypatch.setattr(pairwise, "SCRATCH_BYTES", SMALL_BYTES)
    monkeypatch.setattr(device_rounds, "LATER_S", 0.1)
    monkeypatch.setattr(device_rounds, "UNTIL_READ_S", 2.0)
    MUTANTS[mutant](monkeypatch)
    # On a busy machine the hosts may be later than the GPUs that are to be late.
    for _ in range(5):
        wrong = device_rounds.late_rounds(topology, monkeypatch, table=IN_NODE)
        if any(topology.world.allgather(bool(wrong))):
            return
    raise AssertionError("the rounds did not notice")
