"""The memory that ranks of a node share: seen by all of them, in huge pages where there are any."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from hvd_ext.shm.regions import address, map_regions

MIB = 2**20
MADV_COLLAPSE = 25


def makes_huge_pages() -> bool:
    """Whether the kernel puts pages together when it is asked to."""
    memory = mmap.mmap(-1, 4 * MIB, flags=mmap.MAP_PRIVATE)
    memory[:] = bytes(4 * MIB)
    begin = -address(memory) % (2 * MIB)
    try:
        memory.madvise(MADV_COLLAPSE, begin, 2 * MIB)
    except OSError:
        return False
    return True


def huge_kib(where: int) -> int:
    """How much of the mapping at an address this process has in huge pages."""
    mapping = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            mapping = int(bounds[1], 16) <= where < int(bounds[2], 16)
        elif mapping and line.startswith("ShmemPmdMapped:"):
            return int(line.split()[1])
    raise AssertionError("no such mapping")


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("region_bytes", [4096, 2 * MIB, 7 * MIB + 4096])
def test_every_rank_sees_what_each_has_written(comm, region_bytes):
    words = [np.frombuffer(region, np.uint64) for region in map_regions(comm, region_bytes)]
    assert [word.nbytes for word in words] == [region_bytes] * comm.size
    words[comm.rank][64:] = np.arange(words[0].size - 64) * (comm.rank + 1)
    comm.Barrier()
    for rank, word in enumerate(words):
        assert np.array_equal(word[64:], np.arange(word.size - 64) * (rank + 1))
    comm.Barrier()


@pytest.mark.ranks(2)
def test_pages_are_huge_for_every_rank(comm):
    if not all(comm.allgather(makes_huge_pages())):
        pytest.skip("the kernel makes no huge pages here")
    regions = map_regions(comm, 7 * MIB + 4096)
    for region in regions:
        np.frombuffer(region, np.uint8).sum()
        assert huge_kib(address(region)) == 6 * 1024
    comm.Barrier()
