"""The numbers that show a node's ranks the progress of an arena's rounds. Pure.

Every exchange gets the next ticket, so a round has one for each bucket. For each rank, the window
holds the last ticket that is ready and the last one that is done.
"""

from __future__ import annotations


class Tickets:
    """The tickets of one rank.

    Attributes:
        finished: the last ticket of the last round, or exchange, that is finished.
    """

    def __init__(self) -> None:
        self.finished = 0
        self._ready = 0

    def of(self, index: int) -> int:
        """The ticket of bucket `index` in this round."""
        return self.finished + index + 1

    def make_ready(self, index: int) -> range:
        """Count the buckets up to `index` as ready; returns those that were not ready before."""
        first = max(0, self._ready - self.finished)
        self._ready = max(self._ready, self.of(index))
        return range(first, index + 1)

    def is_ready(self, index: int) -> bool:
        """Whether bucket `index` is ready in this round."""
        return self._ready >= self.of(index)

    def finish(self, count: int) -> int:
        """Finish a round of `count` buckets, or that many exchanges; returns the last ticket."""
        self.finished += count
        return self.finished
