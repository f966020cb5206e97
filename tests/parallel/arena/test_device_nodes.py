"""The device arena on several nodes, on the stand-in for CuPy: the bits of the arena on the host.

GPUs are late in each round: this rank's kernels, and the copies that bring shards back. Each
mutant is a mistake in the order of events, which the rounds must see.
"""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

from hvd_ext.allreduce.table import Row, Table
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda import carriers, nccl
from hvd_ext.arena.cuda.arena import DeviceArena, carried_by
from hvd_ext.arena.cuda.between_nodes import BetweenNodes
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.inter_node import Channels
from hvd_ext.compression.formats import FORMATS, NONE, powersgd
from hvd_ext.events import CommEvent, listen
from hvd_ext.shm.regions import WindowError
from testbed.cuda_stand_in import nccl as stand_in
from testbed.cuda_stand_in import streams
from tests.ranks.asserts import parallel_assert
from tests.support.arena.device_on_nodes import COUNTS, LATE_S, TABLE, rounds
from tests.support.arena.pretended_nodes import pretend
from tests.support.mutants import mutate


@pytest.fixture(autouse=True)
def _devices_work():
    yield
    gc.collect()
    streams.forget_errors()


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize(
    ("dtype", "format"),
    [
        ("float32", NONE),
        ("float16", NONE),
        ("bfloat16", NONE),
        ("float32", FORMATS["bf16"]),
        ("float32", FORMATS["int8"]),
        pytest.param("float32", FORMATS["fp16"], marks=pytest.mark.long),
        pytest.param("float32", powersgd(2), marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_sums_have_the_bits_of_the_host(comm, dtype, format):
    for ranks_per_node in {2: [1], 4: [2, 1]}[comm.size]:
        topology = pretend(comm, ranks_per_node)
        problems = rounds(topology, dtype, format)
        parallel_assert(comm, not problems, problems)
        topology.close()


@pytest.fixture
def on_stand_in(monkeypatch):
    monkeypatch.setattr(nccl, "_load", lambda: stand_in)
    monkeypatch.setattr(nccl, "_communicators", {})
    monkeypatch.setattr(stand_in, "_HUNG_AFTER_S", 10.0)


# Short buckets go through the host, and long ones through NCCL.
BY_NCCL = Table((Row(2, 0, "device", ((0, "staged"), (1 << 10, "nccl"))), *TABLE.rows), "a test")


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
@pytest.mark.usefixtures("on_stand_in")
def test_rails_by_nccl_have_the_bits_of_the_host(comm, made, bucket_bytes):
    topology = pretend(comm, comm.size // 2)
    for dtype, format in (("float32", NONE), ("float16", NONE), ("float32", FORMATS["bf16"])):
        problems = rounds(topology, dtype, format, bucket_bytes, BY_NCCL)
        parallel_assert(comm, not problems, problems)
    topology.close()
    uses = [carriers for carriers, _ in made]
    first = {"staged", "nccl"} if bucket_bytes == 1 else {"nccl"}
    parallel_assert(comm, uses == [first, {"staged"}, {"staged"}], uses)
    parallel_assert(comm, f"{2 if bucket_bytes == 1 else 1} bucket" in made[0][1], made)
    parallel_assert(comm, "by NCCL" in made[0][1], made)
    refused = [said for _, said in made[1:]]
    parallel_assert(comm, "staged, not nccl: NCCL would round 16 bits" in refused[0], made)
    parallel_assert(comm, "staged, not nccl: bf16 is coded on the host" in refused[1], made)


@pytest.mark.ranks(4)
@pytest.mark.usefixtures("on_stand_in")
def test_rails_are_measured_before_the_first_step(comm, monkeypatch):
    from tests.support.arena.device_rounds import Device

    monkeypatch.setattr(carriers, "_rows", {})
    monkeypatch.setattr(carriers, "COARSE_BYTES", (4 << 10, 64 << 10))
    monkeypatch.setattr(carriers, "COARSE_ROUNDS", 2)
    topology = pretend(comm, 2)
    device = Device(topology, comm.rank % streams.DEVICES)
    config = ArenaConfig(topology, TABLE, 60)
    table = carriers.prepare(config, device.ordinal, lambda: device.stream.ptr).table
    (row, *rest) = table.rows
    parallel_assert(comm, (row.nodes, row.ranks_per_node, row.memory) == (2, 2, "device"), row)
    names = [set(times) for _, times in row.measured_us]
    parallel_assert(comm, names == [{"staged", "nccl"}] * 2, row)
    parallel_assert(comm, tuple(rest) == TABLE.rows, rest)
    topology.close()


RAIL_MUTANTS = {
    "a rail sums before its shard is reduced": (
        *(BetweenNodes, "_sum_by_nccl"),
        *("self._runtime.streamWaitEvent(self._back.ptr, self._copied[index])", "pass"),
    ),
    "peers are given a shard before its sum": (
        *(BetweenNodes, "_sum_by_nccl"),
        *("(after - begin) // 4, self._back.ptr)", "(after - begin) // 4, self._reducing.ptr)"),
    ),
    "a bucket overtakes another": (Channels, "__init__", "0 if index in by_others else ", ""),
    "no rank is waited for": (Channels, "wait", "wait_for(self._pending)", "pass"),
}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("mutant", RAIL_MUTANTS)
@pytest.mark.usefixtures("on_stand_in")
def test_a_mutant_of_a_rail_is_killed(comm, monkeypatch, mutant):
    mutate(monkeypatch, *RAIL_MUTANTS[mutant])
    topology = pretend(comm, 2)
    queue = BetweenNodes._sum_by_nccl

    def late(self, index, end):
        time.sleep((index + topology.cross.rank) % 2 * LATE_S)
        queue(self, index, end)

    monkeypatch.setattr(BetweenNodes, "_sum_by_nccl", late)
    for _ in range(5):
        if any(comm.allgather(bool(rounds(topology, bucket_bytes=1, table=BY_NCCL)))):
            return
    raise AssertionError("the rounds did not notice")


@pytest.mark.ranks(2)
def test_what_is_not_sent_yet_is_drained_and_kept(comm):
    from tests.support.arena.device_rounds import Device, layout_of, raw, values

    topology = pretend(comm, 1)
    layout, int8 = layout_of([4096], columns=64), FORMATS["int8"]
    device = Device(topology)
    on_gpu = device.arena(layout, table=TABLE, format=int8)
    on_host = HostArena(ArenaConfig(topology, TABLE, 60, int8), layout, 1.0)
    data = raw(values("float32", 4096, comm.rank, 1))
    device.fill(on_gpu, 0, data)
    on_host.data[: data.nbytes] = data
    for each in (on_gpu, on_host):
        each.reduce(0)
        each.finish()
    (ours,), (theirs,) = on_gpu.drain(), on_host.drain()
    parallel_assert(comm, ours.any() and np.array_equal(ours, theirs), "drained")
    whole = np.arange(4096, dtype=np.float32)
    for each in (on_gpu, on_host):
        each.keep(0, {0: whole})
    (ours,), (theirs,) = on_gpu.drain(), on_host.drain()
    parallel_assert(comm, np.array_equal(ours, theirs), "kept")
    parallel_assert(comm, on_gpu.shards == on_host.shards, "shards")
    on_gpu.close()
    on_host.close()
    topology.close()


@pytest.mark.ranks(2, 4)
def test_a_machine_is_seen_to_be_right(comm):
    for ranks_per_node in {2: [2, 1], 4: [2]}[comm.size]:
        prove(pretend(comm, ranks_per_node))


def prove(topology):
    from hvd_ext.arena.cuda.self_check import check
    from tests.support.arena.device_rounds import Device

    device = Device(topology, topology.world.rank % streams.DEVICES)
    config = ArenaConfig(topology, TABLE, 60)
    check(config, device.ordinal, lambda: device.stream.ptr, rounds=4)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_a_machine_that_is_wrong_is_refused_on_every_rank(comm, monkeypatch, ranks_per_node):
    # Only rank 1's events are not waited for.
    if comm.rank == 1:
        wait = "self._runtime.streamWaitEvent(stream, events[-1])"
        mutate(monkeypatch, DeviceArena, "finish", wait, "pass")
    refused = []
    for _ in range(5):
        try:
            prove(pretend(comm, ranks_per_node))
        except WindowError as error:
            refused.append(str(error))
            break
    says = comm.allgather(refused)
    parallel_assert(comm, says[0] == says[1] and "gave wrong sums" in says[0][0], says)


MUTANTS = {
    "a shard leaves before it is reduced": (
        *("_arrive", "self._runtime.eventSynchronize(self._copied[index])", "pass"),
    ),
    "sums are not waited for": ("wait", "self.channels.wait()", "pass"),
    "copies back are not waited for": ("wait", "return self._back", "return self._reducing"),
    "peers are given nothing": (
        *("_to_peers", "order_of_peers(self._rank, len(self._addresses))", "()"),
    ),
    "pinned memory is used again too early": (
        *("_pinned", "memory[end - length : end]", "memory[:length]"),
    ),
    "the host is copied before the sum": (
        *("take", "self._runtime.eventRecord(self._copied[index], self._reducing.ptr)"),
        "self._runtime.eventRecord(self._copied[index], self._back.ptr)",
    ),
}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_killed(comm, monkeypatch, mutant):
    mutate(monkeypatch, BetweenNodes, *MUTANTS[mutant])
    topology = pretend(comm, 2)
    # On a busy machine the hosts may be later than the GPUs that are to be late.
    for _ in range(5):
        if any(comm.allgather(bool(rounds(topology)))):
            return
    raise AssertionError("the rounds did not notice")


@pytest.mark.parametrize(
    ("how", "carrier"),
    [
        ("late", "mpi"),
        ("late", "nccl"),
        pytest.param("ended", "mpi", marks=pytest.mark.long),
        pytest.param("late", "staged", marks=pytest.mark.long),
    ],
)
def test_a_missing_rank_of_another_node_is_named(launch, how, carrier):
    # Else the launcher is quicker than the ranks to see that one has ended.
    env = {"OMPI_MCA_orte_enable_recovery": "1"} if how == "ended" else {}
    arguments = ["tests/programs/arena/device_missing_rank.py", how, carrier]
    done = launch(3, arguments, env=env, timeout=60)
    assert done.returncode != 0, done.stdout
    assert "all rounds done" not in done.stdout
    assert "rank 2 (node2) did not reach a gradient exchange within 2 s" in done.stdout, done.stdout


@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    ("ranks_per_node", "carrier", "recorded"),
    [
        (2, "staged", "cuda_ipc and pinned memory"),
        (2, "staged_pairwise", "cuda_ipc_pairwise and pinned memory"),
        (4, "ipc", "cuda_ipc"),
        (4, "ipc_pairwise", "cuda_ipc_pairwise"),
    ],
)
def test_exchanges_have_the_time_of_the_gpu(comm, ranks_per_node, carrier, recorded):
    from tests.support.arena.device_rounds import Device, layout_of

    topology = pretend(comm, ranks_per_node)
    device = Device(topology, comm.rank % streams.DEVICES)
    arena = device.arena(layout_of(COUNTS), table=carried_by(carrier, TABLE))
    seen: list[CommEvent] = []
    end = listen(seen.append)
    steps, before_s = 3, time.monotonic()
    for step in range(steps):
        # The kernels are late, as they wait for the first bucket; that is no time of theirs.
        device.stream.launch_host_func(time.sleep, 0.05 * (step == 1))
        for index in range(len(arena.layout.buckets)):
            arena.reduce(index)
        arena.finish()
    device.stream.synchronize()
    arena.close()
    end()
    topology.close()
    sizes = [bucket.message_bytes for bucket in arena.layout.buckets]
    parallel_assert(comm, [e.message_bytes for e in seen] == steps * sizes, seen)
    parallel_assert(comm, {e.algorithm for e in seen} == {recorded}, seen)
    parallel_assert(comm, all(e.size == 4 and e.operation == "allreduce" for e in seen), seen)
    parallel_assert(comm, all(0 < e.transfer_s < 60 for e in seen), seen)
    in_order = all(before_s < e.ready_s <= e.start_s < time.monotonic() for e in seen)
    parallel_assert(comm, in_order, seen)
