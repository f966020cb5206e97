"""What carries gradients on GPUs of a node, on the stand-ins for CuPy and NCCL."""

from __future__ import annotations

import gc
import logging

import pytest

from hvd_ext.allreduce.table import BUILT_IN, Row, Table, load
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda import carriers, nccl, self_check
from hvd_ext.arena.cuda.arena import DeviceArena, carried_by
from hvd_ext.arena.cuda.pairwise import Pairwise
from testbed.cuda_stand_in import nccl as stand_in
from testbed.cuda_stand_in import streams
from tests.ranks.asserts import parallel_assert
from tests.support.mutants import mutate

# Short buckets and long ones of one arena go different ways.
BOTH = Table((Row(1, 0, "device", ((0, "ipc"), (1 << 10, "nccl"))),), "a test")


@pytest.fixture(autouse=True)
def _nccl(monkeypatch):
    monkeypatch.setattr(nccl, "_load", lambda: stand_in)
    for kept in ("_communicators", "_refusals"):
        monkeypatch.setattr(nccl, kept, {})
    monkeypatch.setattr(carriers, "_rows", {})
    monkeypatch.setattr(carriers, "COARSE_BYTES", (4 << 10, 64 << 10))
    monkeypatch.setattr(carriers, "COARSE_ROUNDS", 2)
    monkeypatch.setattr(carriers, "prove", lambda *_: None)
    yield
    gc.collect()
    streams.forget_errors()


@pytest.mark.ranks(2, pytest.param(4, marks=pytest.mark.long))
@pytest.mark.parametrize("bucket_bytes", [1, pytest.param(1 << 20, marks=pytest.mark.long)])
def test_sums_have_the_bits_of_the_kernel(topology, monkeypatch, bucket_bytes):
    from tests.support.arena.device_rounds import late_rounds

    made = []
    init = DeviceArena.__init__

    def noted(self, *given, **named):
        init(self, *given, **named)
        made.append(self.carriers)

    monkeypatch.setattr(DeviceArena, "__init__", noted)
    wrong = late_rounds(topology, monkeypatch, "float32", bucket_bytes, table=BOTH)
    parallel_assert(topology.world, not wrong, wrong)
    both = {"ipc", "nccl"} if bucket_bytes == 1 else {"nccl"}
    parallel_assert(topology.world, set(made[0]) == both, made)
    wrong = late_rounds(topology, monkeypatch, "float16", bucket_bytes, table=BOTH)
    parallel_assert(topology.world, not wrong, wrong)
    parallel_assert(topology.world, set(made[1]) == {"ipc"}, made)


def prepared(topology, table=BUILT_IN):
    """The table that counts, and what an arena with it says of its longest bucket."""
    from tests.support.arena.device_rounds import Device, layout_of

    device = Device(topology, topology.world.rank % streams.DEVICES)
    pointer = device.stream.ptr
    config = ArenaConfig(topology, table, 60)
    ready = carriers.prepare(config, device.ordinal, lambda: pointer).table
    arena = device.arena(layout_of([100_000]), table=ready)
    said = arena.explain()
    arena.close()
    return ready, said


@pytest.mark.ranks(2)
def test_the_first_arena_measures_and_says_why(topology, monkeypatch):
    ready, said = prepared(topology)
    row = ready.rows[0]
    parallel_assert(topology.world, (row.nodes, row.ranks_per_node) == (1, 2), row)
    parallel_assert(topology.world, row.memory == "device", row)
    names = [set(times) for _, times in row.measured_us]
    parallel_assert(topology.world, names == [{"ipc", "nccl"}] * 2, row)
    parallel_assert(topology.world, "measurement before the first step" in said, said)
    parallel_assert(topology.world, "the next best" in said, said)
    everyones = topology.world.allgather(ready.rows)
    parallel_assert(topology.world, everyones[0] == everyones[1], everyones)
    # Once; and a table that has decided is not measured again.
    monkeypatch.setattr(carriers, "measure", None)
    prepared(topology)
    for table in (carried_by("ipc"), BOTH):
        carriers._rows.clear()
        parallel_assert(topology.world, prepared(topology, table)[0] is table, "kept")


def load_none():
    with nccl.or_window_error("NCCL"):
        raise OSError("libnccl.so.2: cannot open shared object file")


@pytest.mark.ranks(2)
def test_without_nccl_on_one_rank_the_kernel_serves(topology, monkeypatch):
    if topology.world.rank == 1:
        monkeypatch.setattr(nccl, "_load", load_none)
    for table, why in ((BUILT_IN, "NCCL was not compared: "), (BOTH, "ipc, not nccl: ")):
        ready, said = prepared(topology, table)
        parallel_assert(topology.world, ready is table, ready)
        parallel_assert(topology.world, why in said, said)
        parallel_assert(topology.world, "libnccl.so.2" in said, said)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("has_nccl", [True, False])
def test_more_than_two_ranks_also_measure_a_pairwise_exchange(topology, monkeypatch, has_nccl):
    if not has_nccl:
        monkeypatch.setattr(nccl, "_load", load_none)
    ready, said = prepared(topology)
    names = {"ipc", "ipc_pairwise", "nccl"} if has_nccl else {"ipc", "ipc_pairwise"}
    measured = [set(times) for _, times in ready.rows[0].measured_us]
    parallel_assert(topology.world, measured == [names] * 2, ready)
    parallel_assert(topology.world, "measurement before the first step" in said, said)
    parallel_assert(topology.world, ("NCCL was not compared: " in said) != has_nccl, said)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("table", [BUILT_IN, carried_by("ipc_pairwise")], ids=["none", "row"])
def test_a_pairwise_exchange_that_is_wrong_is_left_out(topology, monkeypatch, caplog, table):
    if topology.world.rank == 1:
        mutate(monkeypatch, Pairwise, "_copy_from_ranks", "*self._peers()", "")
    with caplog.at_level(logging.WARNING, "hvd_ext"):
        ready, said = prepared(topology, table)
    (row, *_) = ready.rows
    named = {name for _, name in row.choices} | {n for _, us in row.measured_us for n in us}
    parallel_assert(
        topology.world, named == ({"ipc", "nccl"} if table is BUILT_IN else {"ipc"}), row
    )
    why = "without pairwise: ipc_pairwise gave wrong sums" in said
    parallel_assert(topology.world, why == (table is not BUILT_IN), said)
    lines = [r.message for r in caplog.records if "all peers of a node at once" in r.message]
    parallel_assert(topology.world, len(lines) == (topology.world.rank == 0), lines)


@pytest.mark.ranks(2)
def test_a_bucket_that_nccl_cannot_serve_takes_the_faster_order(topology, made):
    from tests.support.arena.device_rounds import Device, layout_of

    us = {"ipc": 9.0, "ipc_pairwise": 5.0, "nccl": 1.0}
    row = Row(1, 0, "device", ((0, "nccl"),), measured_us=((4096, us),))
    device = Device(topology)
    for dtype in ("float32", "float16"):
        device.arena(layout_of([1000], dtype), table=Table((row,), "a test")).close()
    parallel_assert(topology.world, [n for n, _ in made] == [{"nccl"}, {"ipc_pairwise"}], made)
    why = "ipc_pairwise, not nccl: NCCL would round 16 bits"
    parallel_assert(topology.world, why in made[1][1], made)


@pytest.mark.ranks(2)
def test_an_nccl_that_is_wrong_is_left_alone(topology, monkeypatch, caplog):
    if topology.world.rank == 1:
        mutate(monkeypatch, stand_in._Communicator, "sum", "part[:] = total", "part[:] = total + 1")
    with caplog.at_level(logging.WARNING, "hvd_ext"):
        _, said = prepared(topology, BOTH)
    parallel_assert(topology.world, "nccl gave wrong sums" in said, said)
    parallel_assert(topology.world, "ranks [1]" in said, said)
    lines = [r.message for r in caplog.records if "do not use NCCL" in r.message]
    parallel_assert(topology.world, len(lines) == (topology.world.rank == 0), lines)


@pytest.mark.ranks(2)
def test_the_self_check_is_of_the_kernel(topology, monkeypatch):
    from tests.support.arena.device_rounds import Device

    made = []
    init = DeviceArena.__init__

    def noted(self, *given, **named):
        init(self, *given, **named)
        made.extend(self.carriers)

    monkeypatch.setattr(DeviceArena, "__init__", noted)
    device = Device(topology)
    config = ArenaConfig(topology, BOTH, 60)
    self_check.check(config, 0, lambda: device.stream.ptr, rounds=2)
    parallel_assert(topology.world, set(made) == {"ipc"}, made)


MUTANTS = {
    "gradients are not waited for": (
        *("reduce", "[self._own.events] if by_nccl else self._events", "[] if by_nccl else []"),
    ),
    "sums are on another stream": (
        *(
            "_sum_by_nccl",
            "bucket.count, self._stream.ptr)",
            "bucket.count, self._current_stream())",
        ),
    ),
    "peers' sums are waited for too early": (
        "finish",
        "self._runtime.eventRecord(self._own.events[-1], last.ptr)",
        "self._runtime.eventRecord(self._own.events[-1], stream)",
    ),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_killed(topology, monkeypatch, mutant):
    from tests.support.arena.device_rounds import late_rounds

    mutate(monkeypatch, DeviceArena, *MUTANTS[mutant])
    for _ in range(5):  # on a busy machine a wrong order may give the right bits
        wrong = late_rounds(topology, monkeypatch, table=carried_by("nccl"))
        if any(topology.world.allgather(bool(wrong))):
            return
    raise AssertionError("the rounds did not notice")


@pytest.mark.parametrize(
    ("np", "names"), [(2, {"ipc", "nccl"}), (3, {"ipc", "ipc_pairwise", "nccl"})]
)
def test_a_job_measures_and_writes_a_table(launch, tmp_path, np, names):
    path = tmp_path / "table.json"
    arguments = ["-o", path, "--least", "4KiB", "--most", "64KiB", "--rounds", "2"]
    done = launch(np, ["tests/programs/arena/device_measure.py", *arguments], timeout=90)
    assert done.returncode == 0, done.stdout
    (row,) = load(path).rows
    assert (row.nodes, row.ranks_per_node, row.memory) == (1, np, "device")
    assert [size for size, _ in row.measured_us] == [4096 << n for n in range(5)]
    assert all(set(times) == names for _, times in row.measured_us)
    assert f"HVD_EXT_TABLE={path}" in done.stdout
