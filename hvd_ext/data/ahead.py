"""Work done on threads a bounded number of batches early, its results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_ahead(
    function: Callable[[T], R], batches: Iterable[Iterable[T]], *, workers: int, ahead: int
) -> Iterator[list[R]]:
    """Yield the results of each batch of items, in the order of the items.

    While one batch is used, those of at most `ahead` later ones are worked out or wait.
    What the function raises is raised where its batch would be.

    Args:
        function: of an item; is called on several threads at once.
        batches: taken as they are needed; may be endless.
        workers: number of threads.
        ahead: 0: nothing is worked out before its batch is asked for.
    """
    waiting: deque[list[Future[R]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="hvd_ext.data")
    try:
        for batch in batches:
            waiting.append([pool.submit(function, item) for item in batch])
            if len(waiting) > ahead:
                yield [future.result() for future in waiting.popleft()]
        while waiting:
            yield [future.result() for future in waiting.popleft()]
    finally:
        pool.shutdown(cancel_futures=True)
