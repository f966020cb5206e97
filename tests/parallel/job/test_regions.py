"""The memory that ranks of a node share: seen by all of them, in huge pages where there are any."""

from __future__ import annotations

import gc
import mmap
import os
import re
from pathlib import Path

import numpy as np
import pytest

from hvd_ext.shm import regions as module
from hvd_ext.shm.libc import address
from hvd_ext.shm.regions import WindowError, map_regions
from hvd_ext.shm.window import NodeWindow
from hvd_ext.system.node_memory import FreeMemory
from tests.ranks.asserts import parallel_assert

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


@pytest.mark.ranks(2, pytest.param(3, marks=pytest.mark.long))
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


def memory_files() -> int:
    """How many anonymous files this process has open."""
    gc.collect()
    found = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists()]
    return sum("memfd:hvd_ext" in name for name in found)


@pytest.mark.ranks(2)
def test_a_forked_child_changes_nothing_of_its_parents(comm):
    window = NodeWindow(comm, 1 << 16)
    words = np.frombuffer(window.data, np.uint64)
    words[:] = comm.rank + 1
    comm.Barrier()
    child = os.fork()
    if child == 0:
        right = (words == comm.rank + 1).all()  # it sees what was there
        words[:] = 7
        os._exit(0 if right and (words == 7).all() else 1)
    _, status = os.waitpid(child, 0)
    comm.Barrier()
    parallel_assert(comm, status == 0 and (words == comm.rank + 1).all(), (status, words))


@pytest.mark.ranks(2)
def test_regions_leave_no_file_behind(comm):
    before = memory_files()
    regions = map_regions(comm, 4096)
    del regions
    comm.Barrier()
    parallel_assert(comm, memory_files() == before, memory_files())


@pytest.mark.ranks(2)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), AttributeError("x")])
@pytest.mark.parametrize("where", ["_use_huge_pages", "_open_region"])
def test_any_error_of_one_rank_is_a_window_error_of_all(comm, monkeypatch, error, where):
    def fails(*arguments):
        raise error

    before = memory_files()
    if comm.rank == 1:
        monkeypatch.setattr(module, where, fails)
    with pytest.raises(WindowError) as caught:
        map_regions(comm, 4096)
    said = str(caught.value)
    del caught
    parallel_assert(comm, len(set(comm.allgather(said))) == 1, said)
    parallel_assert(comm, memory_files() == before, memory_files())


@pytest.mark.ranks(2)
def test_a_python_without_memfd_create_takes_the_c_librarys(comm, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    regions = map_regions(comm, 4096)
    parallel_assert(comm, [region.nbytes for region in regions] == [4096] * 2, regions)
    comm.Barrier()


@pytest.mark.ranks(2)
def test_a_system_without_anonymous_files_is_a_window_error(comm, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    if comm.rank == 1:
        monkeypatch.setattr(module, "libc", lambda: object())
    with pytest.raises(WindowError, match=r"no memfd_create: use glibc 2\.27"):
        map_regions(comm, 4096)


@pytest.mark.ranks(2)
def test_more_than_a_memory_limit_has_free_is_refused_by_name(comm, monkeypatch):
    """At a control group's limit the kernel kills: it is asked before memory is taken."""
    limit = FreeMemory(10000, "the memory limit of /sys/fs/cgroup/job")
    monkeypatch.setattr(module, "free_memory", lambda: limit)
    regions = map_regions(comm, 4096)
    said = r"together, and the memory limit of /sys/fs/cgroup/job has 9.766 KiB free"
    with pytest.raises(WindowError, match=said):
        map_regions(comm, 8192)
    comm.Barrier()
    del regions
