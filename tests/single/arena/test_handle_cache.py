"""The cache of opened handles, with files that are mapped in place of a peer's memory."""

from __future__ import annotations

import mmap
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.arena.cuda.handle_cache import HandleCache


def map_file(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / str(index) for index in range(5)]
    for index, path in enumerate(paths):
        path.write_bytes(bytes([index]) * 64)
    return paths


def test_what_is_open_is_found_again_and_the_oldest_idle_is_closed(files: list[Path]) -> None:
    cache = HandleCache(map_file, mmap.mmap.close, most=2)
    maps = [cache.lease(path) for path in files[:4]]
    assert [m[0] for m in maps] == [0, 1, 2, 3]
    assert cache.lease(files[0]) is maps[0]
    cache.release(files[0])
    # The bound is on what is idle: all of these are in use.
    assert not any(m.closed for m in maps)
    for path in files[:3]:
        cache.release(path)
    assert [m.closed for m in maps] == [True, False, False, False]
    assert cache.lease(files[2]) is maps[2]
    cache.release(files[2])
    cache.release(files[3])
    assert [m.closed for m in maps] == [True, True, False, False]
    assert cache.lease(files[1])[0] == 1
    assert (cache.hits, cache.misses) == (2, 5)


def test_a_thread_that_opens_a_handle_keeps_others_from_it() -> None:
    opening, go_on = threading.Event(), threading.Event()
    opened: list[object] = []

    def open_slowly(_: str) -> object:
        opening.set()
        go_on.wait(10)
        opened.append(object())
        return opened[-1]

    cache = HandleCache(open_slowly, opened.remove, most=0)
    leased: list[object] = []
    threads = [threading.Thread(target=lambda: leased.append(cache.lease("a"))) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert opening.wait(10)
    threads[1].join(0.1)  # it would have opened the handle once more by now
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert leased == [opened[0]] * 2
    cache.release("a")
    assert opened
    cache.release("a")
    assert not opened


def test_what_cannot_be_opened_is_no_entry(files: list[Path], tmp_path: Path) -> None:
    cache = HandleCache(map_file, mmap.mmap.close, most=1)
    absent = tmp_path / "absent"
    with pytest.raises(FileNotFoundError):
        cache.lease(absent)
    with pytest.raises(ValueError, match="is not leased"):
        cache.release(absent)
    cache.lease(files[0])
    cache.release(files[0])
    with pytest.raises(ValueError, match="is not leased"):
        cache.release(files[0])
    assert (cache.hits, cache.misses) == (0, 1)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=200), st.integers(0, 3))
def test_no_use_is_cut_short_and_no_handle_is_open_twice(
    steps: list[tuple[int, bool]], most: int
) -> None:
    opened: Counter[int] = Counter()

    def close(key: int) -> None:
        opened[key] -= 1

    def open_handle(key: int) -> int:
        opened[key] += 1
        return key

    cache = HandleCache(open_handle, close, most)
    users: Counter[int] = Counter()
    idle: list[int] = []  # the one that was released first comes first
    for key, leases in steps:
        if leases:
            cache.lease(key)
            users[key] += 1
            idle = [other for other in idle if other != key]
        elif users[key]:
            cache.release(key)
            users[key] -= 1
            if not users[key]:
                idle = [*idle, key][-most:] if most else []
        expected = {*idle, *(k for k in users if users[k])}
        assert {k: n for k, n in opened.items() if n} == dict.fromkeys(expected, 1)
    assert cache.hits + cache.misses == sum(leases for _, leases in steps)
