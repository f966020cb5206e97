"""Shards of gradients on GPUs that MPI sends between nodes, on the stand-in for CuPy.

Its memory is the host's, so that every MPI takes it. Each mutant is a mistake in the order of
events and messages, which the rounds must see.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import threading
import time
from dataclasses import replace

import pytest

from hvd_ext.allreduce.agreed import library
from hvd_ext.allreduce.algorithms import direct
from hvd_ext.allreduce.table import Row, Table
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda import between_nodes, carriers, nccl
from hvd_ext.arena.cuda.between_nodes import BetweenNodes
from hvd_ext.arena.cuda.by_mpi import DeviceShard
from hvd_ext.arena.inter_node import Channels
from hvd_ext.compression.formats import FORMATS
from testbed.cuda_stand_in import streams
from tests.ranks.asserts import parallel_assert
from tests.support.arena.device_on_nodes import LATE_S, TABLE, rounds
from tests.support.arena.mpi_mishaps import MISHAPS
from tests.support.arena.pretended_nodes import pretend
from tests.support.mutants import mutate

# The order of sums is that of `direct`.
ON_HOST = Row(0, 0, "host", ((0, "direct"),))
BY_MPI = Table((Row(0, 0, "device", ((0, "mpi"),)), ON_HOST), "a test")
# The host's sums are made without `direct`, which mutants change.
APART = Table((BY_MPI.rows[0], *TABLE.rows), "a test")
# Short buckets go through the host, and long ones through MPI as they are.
BOTH = Table((Row(0, 0, "device", ((0, "staged"), (1 << 10, "mpi"))), ON_HOST), "a test")


@pytest.fixture(autouse=True)
def _devices_work():
    yield
    gc.collect()
    streams.forget_errors()


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
def test_sums_have_the_bits_of_the_host(comm, made, dtype, bucket_bytes):
    for ranks_per_node in {2: [1], 4: [2, 1]}[comm.size]:
        topology = pretend(comm, ranks_per_node)
        problems = rounds(topology, dtype, bucket_bytes=bucket_bytes, table=BOTH)
        parallel_assert(comm, not problems, problems)
        topology.close()
    used = {"staged", "mpi"} if bucket_bytes == 1 else {"mpi"}
    parallel_assert(comm, all(names == used for names, _ in made), made)
    parallel_assert(comm, all("by MPI from device memory" in said for _, said in made), made)


@pytest.mark.ranks(2)
def test_a_format_is_coded_on_the_host(comm, made):
    topology = pretend(comm, 1)
    for dtype in ("float32", "bfloat16"):
        problems = rounds(topology, dtype, FORMATS["fp16"], table=BY_MPI)
        parallel_assert(comm, not problems, problems)
    topology.close()
    parallel_assert(comm, [names for names, _ in made] == [{"staged"}, {"mpi"}], made)
    parallel_assert(comm, "staged, not mpi: fp16 is coded on the host" in made[0][1], made)


@pytest.mark.ranks(2)
def test_within_a_node_nothing_is_given_to_mpi(comm, made):
    from tests.support.arena.device_rounds import Device, layout_of

    topology = pretend(comm, 2)
    Device(topology).arena(layout_of([1000]), table=BY_MPI).close()
    topology.close()
    parallel_assert(comm, made[0][0] == {"ipc"}, made)


def prepared(topology, table):
    """What an arena says of the table that counts, and which carriers it has."""
    from tests.support.arena.device_rounds import Device, layout_of

    device = Device(topology, topology.world.rank % streams.DEVICES)
    pointer = device.stream.ptr
    config = ArenaConfig(topology, table, 60)
    ready = carriers.prepare(config, device.ordinal, lambda: pointer)
    arena = device.arena(layout_of([100_000]), table=ready.table)
    said, used = arena.explain(), arena.carriers
    arena.close()
    return said, used


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", ["measured", "by hand", "elsewhere", "wrong"])
def test_a_row_counts_under_the_library_that_was_seen_to_be_right(comm, monkeypatch, caplog, case):
    monkeypatch.setattr(carriers, "_rows", {})
    monkeypatch.setattr(carriers, "COARSE_BYTES", (4 << 10, 64 << 10))
    monkeypatch.setattr(carriers, "prove", lambda *_: None)
    monkeypatch.setattr(nccl, "_refusals", {})
    if case == "wrong" and comm.rank == 1:
        monkeypatch.setattr(DeviceShard, "outgoing", MISHAPS["wrong"])
    measured_under = {"by hand": "", "elsewhere": "Open MPI v1.2, package"}.get(case, library())
    row = replace(BOTH.rows[0], library=measured_under)
    topology = pretend(comm, 1)
    with caplog.at_level(logging.WARNING, "hvd_ext"):
        said, used = prepared(topology, Table((row, ON_HOST), "a test"))
    topology.close()
    lines = [r.message for r in caplog.records if "not given to MPI as they are" in r.message]
    if case == "measured":
        parallel_assert(comm, used == ["mpi"] and not lines, (used, lines))
        return
    why = {
        "by hand": "measured under no MPI library",
        "elsewhere": "measured under Open MPI v1.2: ",
        "wrong": "mpi gave wrong sums",
    }[case]
    parallel_assert(comm, used == ["staged"], used)
    parallel_assert(comm, "without mpi: " in said and why in said, said)
    parallel_assert(comm, len(lines) == (comm.rank == 0), lines)


MUTANTS = {
    "a shard is sent before it is reduced": (
        *(BetweenNodes, "_arrive"),
        *("self._runtime.eventSynchronize(self._copied[index])", "pass"),
    ),
    "a sum is sent before it is there": (
        *(between_nodes, "_sum_terms", "runtime.eventSynchronize(event)", "pass"),
    ),
    "what arrives has the memory of another bucket": (
        *(Channels, "__init__", "0 if index in by_others else ", ""),
    ),
    "a rank's own part is left out": (
        *(DeviceShard, "__init__", "self._arriving[rank] = self.own", "pass"),
    ),
}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_killed(comm, monkeypatch, mutant):
    mutate(monkeypatch, *MUTANTS[mutant])
    topology = pretend(comm, 2)
    wait = direct.wait

    def late(request):
        time.sleep(topology.cross.rank * LATE_S)
        wait(request)

    monkeypatch.setattr(direct, "wait", late)
    for _ in range(5):
        if any(comm.allgather(bool(rounds(topology, bucket_bytes=1, table=APART)))):
            return
    raise AssertionError("the rounds did not notice")


class LateSend:
    """A send whose buffer is read only after a while, as MPI may."""

    def __init__(self, comm, *given):
        self._comm, self._given, self._request = comm, given, None
        threading.Timer(3 * LATE_S, self._begin).start()

    def _begin(self):
        self._request = self._comm.Isend(*self._given)

    def Test(self):
        return self._request is not None and self._request.Test()


class LateComm:
    """A communicator with such sends."""

    def __init__(self, comm):
        self.size, self.rank, self.Irecv = comm.size, comm.rank, comm.Irecv
        self.Isend = functools.partial(LateSend, comm)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("waits", [True, False])
def test_memory_stays_until_it_was_sent(comm, monkeypatch, waits):
    if not waits:
        mutate(monkeypatch, direct, "exchange", "wait(send)", "pass")
    on = DeviceShard.on

    # The other node is not late, so that the first one has its results before it has sent its own.
    def on_late(shard, comm):
        return on(shard, comm if comm.rank else LateComm(comm))

    monkeypatch.setattr(DeviceShard, "on", on_late)
    topology = pretend(comm, 2)
    for _ in range(1 if waits else 5):
        problems = comm.allgather(rounds(topology, bucket_bytes=1, table=APART))
        if any(problems):
            break
    assert any(problems) != waits, problems
    topology.close()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("wrong", "mpi gave wrong sums"),
        *(pytest.param(*x, marks=pytest.mark.long) for x in (("right", ""), ("crash", None))),
    ],
)
def test_a_job_reports_whether_mpi_takes_device_memory(launch, how, reason):
    done = launch(2, ["tests/programs/arena/device_mpi_probe.py", how], timeout=90)
    assert (done.returncode == 0) == (how != "crash"), done.stdout
    lines = [line for line in done.stdout.splitlines() if '"reason"' in line]
    told = [json.loads(line[line.index("{") :]) for line in lines]
    assert len(told) == (0 if how == "crash" else 2), done.stdout
    assert all((reason in each["reason"]) == bool(each["reason"]) for each in told if reason)
    assert all({"staged", "mpi"} <= set(each["us"]) for each in told if how == "right"), told
    assert all(not each["reason"] for each in told if how == "right"), told
