"""The end of arenas: after the exchanges that they have started, and before MPI's end."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Protocol

from hvd_ext.job.progress_thread import ProgressThread, join_ending


class Closable(Protocol):
    """An arena, or another object that communicates by itself; see Arena."""

    def close(self) -> None: ...
    def hurry(self, within_s: float) -> bool: ...


# Objects that are still to be closed.
_closing: dict[Future[None], Sequence[Closable]] = {}


def close_later(progress: ProgressThread, arenas: Sequence[Closable]) -> None:
    """Close arenas on the thread that reduces them, after the started exchanges."""

    def close_arenas() -> None:
        for arena in arenas:
            arena.close()

    # The garbage collector may be the caller, and must not wait.
    future = progress.close(close_arenas)
    _closing[future] = arenas
    future.add_done_callback(lambda done: _closing.pop(done, None))


def wait_until_closed(within_s: float) -> None:
    """Wait until closed arenas no longer use MPI or a GPU.

    Their threads have ended by then, too. If ranks of other nodes keep an exchange from ending for
    longer than `within_s`, the job ends and names them.
    """
    waited_for = []
    for future, arenas in list(_closing.items()):
        if True in [arena.hurry(within_s) for arena in arenas]:
            waited_for.append(future)
    wait(waited_for, 3 * within_s)
    join_ending(within_s)
