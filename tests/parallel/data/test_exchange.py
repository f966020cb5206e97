"""Records between ranks: once their exchange has failed, nobody waits for it any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hvd_ext.data.store.exchange import RecordExchange
from hvd_ext.errors import HvdExtError
from tests.ranks.asserts import parallel_assert

if TYPE_CHECKING:
    from mpi4py import MPI

LIMIT_S = 20


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The errors that would end the job."""
    errors: list[Exception] = []
    monkeypatch.setattr("hvd_ext.data.store.exchange.end_job", errors.append)
    return errors


@pytest.fixture
def exchange(comm: MPI.Comm) -> RecordExchange:
    return RecordExchange(comm)


def empty(count: int = 8) -> np.ndarray:
    return np.zeros(count, np.uint8)


def there(record: np.ndarray) -> Future[np.ndarray]:
    done: Future[np.ndarray] = Future()
    done.set_result(record)
    return done


def asks(exchange: RecordExchange) -> list[Callable[[], object]]:
    """Whatever can be asked of an exchange."""
    return [
        lambda: exchange.receive(empty(), 1, 9),
        lambda: exchange.wait_for(empty, 1),
        lambda: exchange.send(there(empty()), 8, 1, 9),
    ]


@pytest.mark.ranks(2)
def test_an_error_ends_every_wait_and_the_job(
    comm: MPI.Comm, exchange: RecordExchange, ended: list[Exception]
) -> None:
    """A record is longer than its receiver knows, which MPI reports on the exchange's thread."""
    if comm.rank == 1:
        exchange.send(there(empty(8)), 8, 0, tag=0)
        exchange.send(there(empty(16)), 16, 0, tag=1)
    comm.Barrier()
    if comm.rank == 0:
        assert exchange.receive(empty(8), 1, tag=0).result(LIMIT_S).size == 8
        never = exchange.receive(empty(8), 1, tag=2)
        waits = exchange.wait_for(lambda: None, 1)
        cut = exchange.receive(empty(8), 1, tag=1)
        for future in (cut, never, waits):
            with pytest.raises(HvdExtError, match=r"exchange of samples failed .*: look for") as e:
                future.result(LIMIT_S)
            assert "\n" not in str(e.value)
        for ask in asks(exchange):
            with pytest.raises(HvdExtError, match="exchange of samples failed"):
                ask()
        exchange.close()
    parallel_assert(comm, len(ended) == (comm.rank == 0), f"{ended}")


@pytest.mark.ranks(2)
def test_what_came_before_an_error_stays_and_what_is_asked_meanwhile_fails(
    comm: MPI.Comm, exchange: RecordExchange, ended: list[Exception]
) -> None:
    asked = threading.Event()

    def gate() -> np.ndarray | None:
        """Hold the thread until all are asked for, so that the others are looked at together."""
        return record if asked.wait(LIMIT_S) else None

    def broken() -> None:
        raise MemoryError

    peer = 1 - comm.rank
    record = np.arange(8, dtype=np.uint8)
    first = exchange.wait_for(gate, peer)
    came = exchange.wait_for(lambda: record, peer)
    breaks = exchange.wait_for(broken, peer)
    never = exchange.receive(empty(), peer, 5)
    assert not never.cancel(), "a peer has a part in it"
    asked.set()
    for future in (first, came):
        assert np.array_equal(future.result(LIMIT_S), record)
    for future in (breaks, never):
        with pytest.raises(HvdExtError, match=r"failed \(MemoryError: \)"):
            future.result(LIMIT_S)
    exchange.close()
    parallel_assert(comm, len(ended) == 1, f"{ended}")


@pytest.mark.ranks(2)
def test_a_closed_exchange_makes_nobody_wait(
    comm: MPI.Comm, exchange: RecordExchange, ended: list[Exception]
) -> None:
    exchange.send(there(empty()), 8, 1 - comm.rank, 3)
    assert exchange.receive(empty(), 1 - comm.rank, 3).result(LIMIT_S).size == 8
    exchange.close()
    for ask in asks(exchange):
        with pytest.raises(HvdExtError, match="after their store or reader was closed"):
            ask()
    parallel_assert(comm, not ended, f"{ended}")
