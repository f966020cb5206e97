"""Ranks that agree over c10d's store, which may hold what others have left; here threads."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from hvd_ext.c10d.store_comm import StoreComm
from hvd_ext.c10d.without_mpi import discover
from hvd_ext.errors import StallError
from hvd_ext.job.monitored_allgather import monitored_allgather
from hvd_ext.job.topology import Topology

T = TypeVar("T")


def on_ranks(do: Callable[[int], T], count: int = 3) -> list[T]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(do, range(count)))


def topology(store: Any, rank: int, count: int = 3, limit_s: float = 60.0) -> Topology:
    return discover(store, tuple(range(count)), rank, "a test", (limit_s, "the limit of a test"))


def test_ranks_that_start_again_meet_no_key_of_their_earlier_life() -> None:
    store = HashStore()
    for life in range(4):
        # In each life, some have gone further than others before they were killed.
        worlds = on_ranks(lambda rank: topology(store, rank).world)
        values = on_ranks(
            lambda rank, life=life, worlds=worlds: worlds[rank].allgather((life, rank))
        )
        assert values == [[(life, rank) for rank in range(3)]] * 3
        for rank in range(life % 3 + 1):
            store.set(f"{worlds[rank].name}/all/1/{rank}", b"")  # half of a step


def test_a_rank_that_is_missing_is_named_whatever_it_left() -> None:
    store = HashStore()
    on_ranks(lambda rank: topology(store, rank))

    def meet(rank: int) -> tuple[int, ...]:
        if rank == 1:
            return (1,)
        said = "rank 1 did not reach a test .* raise the limit of a test"
        with pytest.raises(StallError, match=said) as refused:
            topology(store, rank, limit_s=0.5)
        return refused.value.ranks

    assert on_ranks(meet) == [(1,)] * 3
    worlds = on_ranks(lambda rank: topology(store, rank).world)
    assert on_ranks(lambda rank: worlds[rank].allgather(rank)) == [[0, 1, 2]] * 3


@pytest.mark.parametrize("late", [0, 1])
def test_after_a_rank_was_late_the_next_round_is_whole(late: int) -> None:
    store = HashStore()
    worlds = on_ranks(lambda rank: topology(store, rank, 2).world, 2)

    def first(rank: int) -> None:
        with pytest.raises(StallError, match=f"rank {late} did not reach a test"):
            monitored_allgather(worlds[rank], rank, 0.1, "a test")

    first(1 - late)
    first(late)
    second = on_ranks(lambda rank: monitored_allgather(worlds[rank], rank, 60, "a test"), 2)
    assert second == [[0, 1], [0, 1]]


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("here",)


@pytest.mark.parametrize("text", [pickle.dumps(_Runs()), b"__import__('os').mkdir('here')", b""])
def test_nothing_in_a_store_is_run(text: bytes, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    store = HashStore()
    comm = StoreComm(store, "name", 0, 2, 60)
    store.set("name/all/0/1", text)
    with pytest.raises((ValueError, SyntaxError)):
        comm.allgather("mine")
    assert not list(tmp_path.iterdir())
    both = StoreComm(store, "sent", 0, 2, 60), StoreComm(store, "sent", 1, 2, 60)
    value = (None, [1, -2.5, b"\x00", "\u00e9"], {3}, set(), True)
    both[0].isend(value, 1, 7)
    assert both[1].irecv(source=0, tag=7).wait() == value
