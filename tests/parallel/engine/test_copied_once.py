"""Long messages of a node, which the kernel copies once: also where it cannot read some memory."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import pytest

from hvd_ext.engine.one_node import OneNode
from hvd_ext.shm import outside
from hvd_ext.shm.block import Block
from tests.ranks.asserts import parallel_assert

pytestmark = pytest.mark.ranks(2, 3)
BYTES = 7 << 20
_MEMFD_SECRET = 447


@pytest.fixture
def group(topology):
    made = OneNode(topology, 60.0, lambda *_: "another collective", "the test's limit")
    yield made
    made.close(True)


def secret(count: int) -> np.ndarray:
    """Memory that the kernel reads for no other process."""
    fd = ctypes.CDLL(None, use_errno=True).syscall(_MEMFD_SECRET, 0)
    if fd < 0:
        return np.empty(0, np.uint8)
    os.ftruncate(fd, count)
    try:
        return np.frombuffer(mmap.mmap(fd, count), np.uint8)
    finally:
        os.close(fd)


def numbers(rank: int) -> np.ndarray:
    return ((np.arange(BYTES) * 7 + rank) % 251).astype(np.uint8)


def exchange(comm, group, own) -> None:
    """Every collective that copies, with rank 0's messages in `own`."""
    mine = own if comm.rank == 0 else numbers(comm.rank)
    out = np.zeros(comm.size * BYTES, np.uint8)
    group.all_gather(Block.of(out), Block.of(mine))
    right = np.array_equal(out, np.concatenate([numbers(rank) for rank in range(comm.size)]))
    parallel_assert(comm, right, "gathered")
    sent = mine if comm.rank == 0 else np.zeros(BYTES, np.uint8)
    group.broadcast(Block.of(sent), 0)
    parallel_assert(comm, np.array_equal(sent, numbers(0)), "broadcast")
    part = BYTES // comm.size
    block, taken = Block.of(mine), np.zeros(part * comm.size, np.uint8)
    group.all_to_all(
        [Block.of(taken).part(rank * part, part) for rank in range(comm.size)],
        [block.part(rank * part, part) for rank in range(comm.size)],
    )
    every = [numbers(rank)[comm.rank * part :][:part] for rank in range(comm.size)]
    parallel_assert(comm, np.array_equal(taken, np.concatenate(every)), "exchanged")
    # Short ones, which alternate between the same places.
    group.barrier()


def test_memory_that_the_kernel_does_not_read_is_passed_in_pieces(comm, group):
    own = secret(BYTES) if comm.rank == 0 else None
    if comm.bcast(own is not None and not len(own)):
        pytest.skip("this kernel has no memfd_secret")
    if own is not None:
        own[:] = numbers(0)
    for _ in range(3):
        exchange(comm, group, own)
        exchange(comm, group, numbers(0))


def test_the_same_where_the_kernel_reads_nothing_of_others(comm, topology, monkeypatch):
    monkeypatch.setattr(outside, "_can_read_peers", lambda _: False)
    made = OneNode(topology, 60.0, lambda *_: "another collective", "the test's limit")
    exchange(comm, made, numbers(0))
    made.close(True)
