"""Planned allreduces of buffers outside shared memory: the bits, the edges, and what is copied."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.allreduce.shared_memory import SharedMemoryExchange
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError
from hvd_ext.shm.layout import shard
from hvd_ext.shm.library import FORMS, load_library, use_kernels
from hvd_ext.shm.window import OPERATIONS, PIECE_BYTES, short_bytes

pytestmark = pytest.mark.ranks(3, *(pytest.param(size, marks=pytest.mark.long) for size in (2, 4)))
GUARD = 64
PAYLOAD_BYTES = 56  # PAYLOAD of window.c


def lengths(ranks: int, item_bytes: int) -> Iterator[int]:
    """Elements: around the longest message in a ticket's line, the longest short one, a piece."""
    for edge in (PAYLOAD_BYTES, short_bytes(ranks), PIECE_BYTES, 2 * PIECE_BYTES):
        yield from (edge // item_bytes - 1, edge // item_bytes, edge // item_bytes + 1)


def planned(
    topology, count: int, dtype: str, operation: str, start: int
) -> tuple[PersistentAllreduce, np.ndarray]:
    """A plan for a buffer that begins `start` bytes after a cache line, and the memory around."""
    stored = np.dtype(DTYPES[dtype].stored_as)
    memory = np.zeros(count * stored.itemsize + 4 * GUARD, np.uint8)
    begin = -memory.ctypes.data % GUARD + GUARD + start
    buffer = np.frombuffer(memory, stored, count, begin)
    plan = PersistentAllreduce(topology, buffer, operation, dtype=dtype, algorithm="shared_memory")
    return plan, memory


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_are_the_arenas(topology, dtype, operation):
    item = DTYPES[dtype].item_bytes
    rng = np.random.default_rng(7 + topology.world.rank)
    for number, count in enumerate(lengths(topology.world.size, item)):
        start = (0, item, 1)[number % 3]
        plan, memory = planned(topology, count, dtype, operation, start)
        arena = PersistentAllreduce.in_arena(topology, count, dtype, operation)
        for _ in range(2):
            bits = rng.integers(0, 256, count * item, np.uint8)
            if item > 2:  # whose NaN are the CPU's and the compiler's
                numbers = rng.integers(-9, 9, count).astype(DTYPES[dtype].stored_as) / 3
                bits = numbers.astype(DTYPES[dtype].stored_as).view(np.uint8)
            plan.buffer.view(np.uint8)[:] = bits
            arena.buffer.view(np.uint8)[:] = bits
            plan()
            arena()
            assert plan.buffer.tobytes() == arena.buffer.tobytes(), (count, start)
            inside = plan.buffer.ctypes.data - memory.ctypes.data
            around = np.delete(memory, slice(inside, inside + plan.buffer.nbytes))
            assert not around.any(), "written beside the buffer"
            topology.world.Barrier()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_form_of_the_kernels_gives_the_same_bits(topology, dtype):
    count = PIECE_BYTES // 2 + 37
    plan, _ = planned(topology, count, dtype, "sum", 2)
    rng = np.random.default_rng(topology.world.rank)
    bits = rng.integers(0, 256, 2 * count, np.uint8)
    results = {}
    for form in FORMS:
        try:
            use_kernels(load_library(), form)
        except UsageError:
            continue
        plan.buffer.view(np.uint8)[:] = bits
        plan()
        results[form] = plan.buffer.tobytes()
    assert "scalar" in results
    assert len(set(results.values())) == 1, list(results)


def test_only_peers_shards_are_copied_into_the_window(topology):
    """Beyond the longest short message, and no longer only beyond a piece."""
    world = topology.world
    count = 2 * short_bytes(world.size) // 4
    buffer = np.full(count, world.rank + 1, np.float32)
    exchange = SharedMemoryExchange(topology, buffer, "sum", "float32", 60.0)
    assert exchange.run() == 0
    np.testing.assert_array_equal(buffer, world.size * (world.size + 1) / 2)
    window = np.frombuffer(exchange._window.data, np.float32, count)
    begin, end = shard(count, world.size, world.rank, 4)
    assert not window[begin:end].any(), "this rank's shard is in its window"
    np.testing.assert_array_equal(np.delete(window, slice(begin, end)), buffer[0])


def test_the_shortest_messages_go_with_their_ticket(topology):
    """In one cache line: none of their data is in the window's."""
    ranks, rank = topology.world.size, topology.world.rank
    for count, beside in ((PAYLOAD_BYTES // 4, True), (PAYLOAD_BYTES // 4 + 1, False)):
        buffer = np.zeros(count, np.float32)
        exchange = SharedMemoryExchange(topology, buffer, "sum", "float32", 60.0)
        for call in range(5):
            buffer[:] = rank + call + 1
            assert exchange.run() == 0
            np.testing.assert_array_equal(buffer, ranks * (ranks + 1) / 2 + ranks * call)
        window = np.frombuffer(exchange._window.data, np.float32, count)
        assert (not window.any()) == beside
