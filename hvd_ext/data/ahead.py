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
    """Work out a function of each item, in batches and ahead of their use.

    While one batch is used, those of at most `ahead` later ones are worked out or wait.
    An error of the function is raised where its batch would be.

    Args:
        function: of an item; is called on several threads at once.
        batches: taken as they are needed; may be endless.
        workers: number of threads.
        ahead: batches; 0: nothing is worked out before its batch is asked for.

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
    """The result of a function, on a thread, of another one's that may not be there yet.

    No thread waits for it meanwhile. The function also gets one that has failed.
    """
    after: Future[R] = Future()

    def run() -> None:
        try:
            after.set_result(function(before))
        except BaseException as error:  # raised where the result is asked for
            after.set_exception(error)

    def start(done: Future[T]) -> None:
        try:
            pool.submit(run)
        except RuntimeError:  # it is closed: nobody asks for the result
            after.cancel()

    before.add_done_callback(start)
    return after


def threads(workers: int) -> ThreadPoolExecutor:
    """Threads that a profiler knows by their name."""
    return ThreadPoolExecutor(workers, thread_name_prefix="hvd_ext.data")
