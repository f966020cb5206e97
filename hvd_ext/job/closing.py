"""The end of arenas: after what they have started, and before MPI's."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Protocol

from hvd_ext.job.progress_thread import ProgressThread, join_ending


class Closable(Protocol):
    """An arena, or what else communicates on its own; as of Arena."""

    def close(self) -> None: ...
    def hurry(self, within_s: float) -> bool: ...


# What is to be closed still.
_closing: dict[Future[None], Sequence[Closable]] = {}


def close_later(progress: ProgressThread, arenas: Sequence[Closable]) -> None:
    """Close arenas on the thread that reduces them, after whatever was started."""

    def close_arenas() -> None:
        for arena in arenas:
            arena.close()

    # The collector, which may be the caller, waits for nothing.
    future = progress.close(close_arenas)
    _closing[future] = arenas
    future.add_done_callback(lambda done: _closing.pop(done, None))


def wait_until_closed(within_s: float) -> None:
    """Wait until nothing that was closed uses MPI or a GPU any more.

    The threads have ended by then, too. Ranks of other nodes that keep an exchange from its end
    for longer than `within_s` are named, and the job ends.
    """
    waited_for = []
    for future, arenas in list(_closing.items()):
        if True in [arena.hurry(within_s) for arena in arenas]:
            waited_for.append(future)
    wait(waited_for, 3 * within_s)
    join_ending(within_s)
