"""Work done on threads a bounded number of batches early, its results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_ahead(
    function: Callable[[T], R], batches: Iterable[Iterable[T]], *, workers: int, ahead: int
) -> Iterator[list[R]]:
    """Call a function for each item, in batches, ahead of their use.

    While one batch is used, at most `ahead` later ones are computed or ready. An error of the
    function is raised in place of its batch.

    Args:
        function: takes an item; runs on several threads at once.
        batches: read when they are needed; may be endless.
        workers: number of threads.
        ahead: number of batches; 0: a batch is computed when it is requested.

    Yields:
        The results of each batch, in the order of the items.
    """
    pool = threads(workers)
    try:
        started = ([pool.submit(function, item) for item in batch] for batch in batches)
        yield from in_order(started, ahead)
    finally:
        pool.shutdown(cancel_futures=True)


def in_order(started: Iterable[list[Future[R]]], ahead: int) -> Iterator[list[R]]:
    """Yield the results of each batch, while at most `ahead` later ones are started."""
    waiting: deque[list[Future[R]]] = deque()
    for batch in started:
        waiting.append(batch)
        if len(waiting) > ahead:
            yield [future.result() for future in waiting.popleft()]
    while waiting:
        yield [future.result() for future in waiting.popleft()]


def then(pool: Executor, before: Future[T], function: Callable[[Future[T]], R]) -> Future[R]:
    """Call a function on a thread with the result of another one, which may not be there yet.

    No thread waits for that result. The function is also called if the other one has failed.
    """
    after: Future[R] = Future()

    def run() -> None:
        try:
            after.set_result(function(before))
        except BaseException as error:  # raised where the result is requested
            after.set_exception(error)

    def start(done: Future[T]) -> None:
        try:
            pool.submit(run)
        except RuntimeError:  # the pool is closed: nobody needs the result
            after.cancel()

    before.add_done_callback(start)
    return after


def threads(workers: int) -> ThreadPoolExecutor:
    """Make threads with a name, which profilers show."""
    return ThreadPoolExecutor(workers, thread_name_prefix="hvd_ext.data")
