"""The device arena, its handles and its events, on the stand-in for CuPy: no GPU is needed.

Each mutant is a mistake in the order that events, tickets and handles keep. The check beside
it must see it.
"""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Callable

import pytest

from hvd_ext.arena.cuda import ipc
from hvd_ext.arena.cuda.arena import DeviceArena
from hvd_ext.arena.cuda.handle_cache import HandleCache
from hvd_ext.arena.cuda.kernels import SERVED
from testbed.cuda_stand_in import memory, streams
from tests.ranks.asserts import parallel_assert
from tests.support.mutants import mutate

FOUR = pytest.param(4, marks=pytest.mark.long)
MORE_THAN_ARE_KEPT = ipc._MOST_IDLE + 2


@pytest.fixture(autouse=True)
def _devices_work():
    yield
    gc.collect()
    streams.forget_errors()


@pytest.mark.ranks(pytest.param(2, marks=pytest.mark.long), 3, FOUR)
@pytest.mark.parametrize(
    ("dtype", "bucket_bytes"),
    [
        *((dtype, 1) for dtype in SERVED),
        (SERVED[0], 1 << 20),
        *(pytest.param(dtype, 1 << 20, marks=pytest.mark.long) for dtype in SERVED[1:]),
    ],
)
def test_sums_are_exact_though_gpus_are_late(topology, monkeypatch, dtype, bucket_bytes):
    from tests.support.arena.device_rounds import late_rounds

    wrong = late_rounds(topology, monkeypatch, dtype, bucket_bytes)
    parallel_assert(topology.world, not wrong, wrong)


def late(topology, patch) -> tuple[bool, str]:
    """Rounds in which GPUs are late in turn, and wait long enough for hosts that are slow."""
    from tests.support.arena import device_rounds

    patch.setattr(device_rounds, "LATER_S", 0.1)
    patch.setattr(device_rounds, "UNTIL_READ_S", 2.0)
    wrong = device_rounds.late_rounds(topology, patch)
    return not wrong, "; ".join(wrong)


@pytest.mark.ranks(2, FOUR)
def test_an_arena_made_anew_lies_where_the_last_one_did(topology):
    from tests.support.arena.device_rounds import Device, layout_of, one_round

    device, peers = Device(topology), topology.world.size - 1
    hits, misses, places = ipc._opened.hits, ipc._opened.misses, []
    for number in range(3):
        # Of a size of its own, so that this is the first.
        arena = device.arena(layout_of([700_000]))
        data = device.read(arena)
        device.stream.synchronize()
        assert not data.any()
        assert one_round(device, arena, number)
        arena.close()
        arena.close()
        places.append(arena.data.data.ptr)
        del arena
        gc.collect()
    assert len(set(places)) == 1
    assert (ipc._opened.misses - misses, ipc._opened.hits - hits) == (peers, 2 * peers)


@pytest.mark.ranks(2, FOUR)
def test_handles_that_are_not_in_use_are_closed(topology, monkeypatch):
    parallel_assert(topology.world, *evicting(topology, monkeypatch))
    assert memory.count_open() <= ipc._MOST_IDLE
    # Those that are closed are opened again.
    parallel_assert(topology.world, *evicting(topology, monkeypatch))


def evicting(topology, patch) -> tuple[bool, str]:
    """More arenas at once than handles are kept: while they live, each has its peers' memory."""
    from tests.support.arena.device_rounds import Device, layout_of, one_round

    device, peers = Device(topology), topology.world.size - 1
    arenas = [device.arena(layout_of([1000])) for _ in range(MORE_THAN_ARE_KEPT)]
    while len(arenas) > 1:
        arenas.pop().close()
    kept = memory.count_open() == ipc._MOST_IDLE + peers
    problem = "" if kept else f"{memory.count_open()} handles are open"
    try:
        if not one_round(device, arenas[0]):
            problem = "wrong sums"
    except RuntimeError as error:
        problem = str(error)
        streams.forget_errors()
    arenas[0].close()
    return not problem, problem


@pytest.mark.ranks(2)
def test_an_arena_is_closed_while_its_kernel_is_under_way(topology, monkeypatch):
    parallel_assert(topology.world, *closing_under_way(topology, monkeypatch))


def closing_under_way(topology, patch) -> tuple[bool, str]:
    """Closed in the middle of a round, on a thread that is on another GPU, with no handle kept."""
    from tests.support.arena.device_rounds import Device, cuda, layout_of

    patch.setattr(ipc._opened, "_most", 0)
    device = Device(topology, 1)
    arena = device.arena(layout_of([1000]))
    closed = threading.Event()
    device.stream.launch_host_func(closed.wait, 1.0)
    arena.reduce(0)
    arena.close()  # waits for the kernel, and so ends after that second
    closed.set()
    assert memory.count_open() == 0
    try:
        with cuda.Device(1):
            cuda.runtime.deviceSynchronize()
    except RuntimeError as error:
        return False, str(error)
    return True, ""


@pytest.mark.ranks(2, 3)
def test_memory_is_used_again_only_when_no_peer_writes_there(topology, monkeypatch):
    parallel_assert(topology.world, *anew_under_way(topology, monkeypatch))


def anew_under_way(topology, patch) -> tuple[bool, str]:
    """An arena given up in the middle of a round, and a new one, while a kernel is late."""
    from tests.support.arena.device_rounds import Device, layout_of, raw, runtime, values

    # To close a handle would wait for the kernel.
    patch.setattr(ipc._opened, "_most", 1000)
    device, rank = Device(topology), topology.world.rank
    layout = layout_of([300_000])
    arena = device.arena(layout)
    data = raw(values("float32", 300_000, rank, 0))
    device.fill(arena, 0, data)
    if rank == 1:
        arena._stream.launch_host_func(time.sleep, 3.0)
        # Its own memory still holds what is to be summed by then.
        runtime.launchHostFunc(0, time.sleep, 4.5)
    arena.reduce(0)
    place = arena.data.data.ptr
    arena.close()
    del arena
    gc.collect()
    topology.world.Barrier()
    arena = device.arena(layout)
    assert arena.data.data.ptr == place
    held = device.read(arena)
    device.stream.synchronize()
    arena.close()
    return not held.any(), "the new arena's memory is not zero"


@pytest.mark.parametrize(
    ("how", "says", "env"),
    [
        pytest.param(
            *("late", "did not reach a gradient exchange within 2 s", {}), marks=pytest.mark.long
        ),
        # Else the launcher is quicker than the ranks to see that one has ended.
        ("ended", "ended before a gradient exchange", {"OMPI_MCA_orte_enable_recovery": "1"}),
    ],
)
def test_a_missing_rank_is_named(launch, how, says, env):
    done = launch(3, ["tests/programs/arena/device_missing_rank.py", how], env=env, timeout=60)
    assert done.returncode != 0, done.stdout
    assert "all rounds done" not in done.stdout
    assert re.search(rf"rank 2 \(.*\) {says}", done.stdout), done.stdout


Mutation = Callable[[pytest.MonkeyPatch], None]
Check = Callable[..., tuple[bool, str]]


def changed(where: object, name: str, line: str, other: str) -> Mutation:
    return lambda patch: mutate(patch, where, name, line, other)


_WAIT = "self._runtime.streamWaitEvent"
_DONE = "self._runtime.eventRecord(self._own.events[-1], last.ptr)"
_STREAM = "stream, now_s = self._current_stream(), time.monotonic()"
MUTANTS: dict[str, tuple[Mutation, Check]] = {
    "gradients are not waited for": (
        changed(DeviceArena, "reduce", f"{_WAIT}(self._stream.ptr, events[index])", "pass"),
        late,
    ),
    "only this rank's gradients are waited for": (
        changed(DeviceArena, "reduce", "else self._events", "else [self._own.events]"),
        late,
    ),
    "other ranks' shards are not waited for": (
        changed(DeviceArena, "finish", f"{_WAIT}(stream, events[-1])", "pass"),
        late,
    ),
    "a ticket before the event is recorded": (
        changed(
            *(DeviceArena, "ready", _STREAM),
            f"{_STREAM}; self._window.ready(self._tickets.of(index))",
        ),
        late,
    ),
    "done before the event is recorded": (
        changed(DeviceArena, "finish", _DONE, f"self._window.done(ticket); {_DONE}"),
        late,
    ),
    "memory that shares a block is exported": (
        lambda patch: patch.setattr(ipc, "_BLOCK_BYTES", 512),
        late,
    ),
    "handles in use are closed": (
        changed(HandleCache, "release", "if entry.users == 0]", "]"),
        evicting,
    ),
    "no handle is closed": (
        changed(HandleCache, "release", "max(0, len(idle) - self._most)", "0"),
        evicting,
    ),
    "memory is closed under a kernel": (
        changed(ipc, "_close_memory", "cupy.cuda.runtime.deviceSynchronize()", "pass"),
        closing_under_way,
    ),
    "another GPU is waited for": (
        changed(ipc, "_close_memory", "cupy.cuda.Device(device)", "cupy.cuda.Device(0)"),
        closing_under_way,
    ),
    "memory is used again under a peer's kernel": (
        changed(ipc, "settle", "cupy.cuda.runtime.deviceSynchronize()", "pass"),
        anew_under_way,
    ),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_killed(topology, monkeypatch, mutant):
    mutation, check = MUTANTS[mutant]
    mutation(monkeypatch)
    # On a busy machine the hosts may be later than the GPUs that are to be late.
    for _ in range(5):
        passed, _ = check(topology, monkeypatch)
        if not all(topology.world.allgather(passed)):
            return
    raise AssertionError("the check did not notice")
