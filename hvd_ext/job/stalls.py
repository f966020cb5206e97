"""Late ranks: how long to wait for them, their names in errors, and the end of the job.

Every wait of hvd_ext that gives up reports this by a StallReport, in the same words.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from hvd_ext.errors import HvdExtError, StallError
from hvd_ext.job import ending
from hvd_ext.named_waits import waiting_for_ranks
from hvd_ext.units import plural

T = TypeVar("T")
Hosts = Sequence[str] | Mapping[int, str]  # by rank of the world
log = logging.getLogger("hvd_ext")
WARN_AFTER_S = 60.0
# The default setting that limits a wait.
STALL_TIMEOUT = "HVD_EXT_STALL_TIMEOUT_S"
# A wait has slices, so that Python can handle Ctrl-C between them.
_SLICE_S = 0.5
# How long an error may take to end the job on its own: a traceback, the program's own
# clean-up, Horovod's shutdown. A rank that hangs in those would hang the job.
_END_WITHIN_S = 10.0
_timers: list[tuple[threading.Timer, HvdExtError]] = []


def name_ranks(ranks: Sequence[int], hosts: Hosts = ()) -> str:
    """Name ranks and their hosts: "rank 3 (node07)", or "ranks 3 (node07), 5 (node08)"."""
    names = ", ".join(f"{rank} ({hosts[rank]})" if hosts else str(rank) for rank in ranks)
    return f"{plural(len(ranks), 'rank')} {names}"


@dataclass(frozen=True, slots=True)
class StallReport:
    """Ranks that did not arrive.

    Attributes:
        ranks: their numbers in the world; empty if all arrived and the network is stuck.
        occasion: what they did not reach, such as "a gradient exchange".
        waited_s: how long the wait was.
        ended: whether their processes are gone.
        setting: the setting that limits the wait.
    """

    ranks: Sequence[int]
    occasion: str
    waited_s: float
    ended: bool = False
    setting: str = STALL_TIMEOUT

    def sentence(self, hosts: Hosts = ()) -> str:
        """Name the missing ranks, and say what to do.

        Args:
            hosts: host name of every rank, if known.
        """
        if not self.ranks:
            return (
                f"{self.occasion} took more than {self.waited_s:g} s though every rank reached "
                f"it: the network between the nodes is stuck, or {self.setting} is too low"
            )
        names = name_ranks(self.ranks, hosts)
        if self.ended:
            return f"{names} ended before {self.occasion} that other ranks are waiting in"
        several = len(self.ranks) > 1
        return (
            f"{names} did not reach {self.occasion} within {self.waited_s:g} s: look for "
            f"{'their' if several else 'its'} last lines above; if "
            f"{'they were' if several else 'it was'} only slow, raise {self.setting}"
        )

    def error(self, hosts: Hosts = ()) -> StallError:
        return StallError(self.sentence(hosts), self.ranks)


class StallMonitor:
    """Waits for the ranks of a node, warns of those that are late, and gives up in the end."""

    def __init__(
        self,
        hosts: Hosts,
        ranks: Sequence[int],
        limit_s: float,
        occasion: str,
        setting: str = STALL_TIMEOUT,
        left: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Note the ranks to wait for.

        Args:
            hosts: host name of every rank of the world.
            ranks: world ranks of the node's ranks, by local rank.
            limit_s: how long to wait for them.
            occasion: what they should reach, for the error.
            setting: source of the limit, for the error.
            left: returns the ranks of the world that have left.
        """
        self._hosts, self._left = hosts, left
        self._setting = setting
        self._of_node = ranks
        self._limit_s = limit_s
        self._occasion = occasion
        # Called between two slices of a wait; an error that it raises ends the wait.
        self.check: Callable[[], None] = lambda: None

    def __call__(self, wait: Callable[[float], T], about: str = "") -> T:
        """Call `wait` with a time limit until it ends or the allowed time is over.

        Args:
            wait: waits for the ranks, for a slice.
            about: what the wait is for, if that is more than the occasion.

        Raises:
            StallError: ranks did not arrive in time, or ended, and the job ends soon; or they
                have left.
        """
        warn_at_s = WARN_AFTER_S
        start_s = time.monotonic()
        shown: AbstractContextManager[None] = nullcontext()
        while True:
            try:
                with shown:
                    return wait(_SLICE_S)
            except ProcessLookupError as ended:
                raise self.give_up(ended) from None
            except TimeoutError as late:
                self.check()
                left = self._left()
                if gone := [rank for rank in late.args[0] if self._of_node[rank] in left]:
                    raise self.error(gone, ended=True) from None
                ranks = [self._of_node[rank] for rank in late.args[0]]
                shown = waiting_for_ranks("exchange", about or self._occasion, start_s, ranks)
                waited_s = time.monotonic() - start_s
                if waited_s >= self._limit_s:
                    raise self.give_up(late) from None
                if waited_s >= warn_at_s:
                    names = name_ranks(ranks, self._hosts)
                    log.warning("hvd_ext: waiting for %s since %.0f s", names, waited_s)
                    warn_at_s += WARN_AFTER_S

    def give_up(self, late: OSError) -> StallError:
        """End the job soon; `late.args[0]` are local ranks, as NodeWindow.late returns them."""
        error = self.error(late.args[0], isinstance(late, ProcessLookupError))
        end_job(error)
        return error

    def error(self, late: Sequence[int], ended: bool) -> StallError:
        """Make the error that names local ranks that are late or have ended."""
        ranks = [self._of_node[rank] for rank in late]
        report = StallReport(ranks, self._occasion, self._limit_s, ended, self._setting)
        return report.error(self._hosts)


def end_job(error: HvdExtError, within_s: float = _END_WITHIN_S) -> None:
    """End every rank of the job after `within_s`, unless this process has ended by then."""

    def abort() -> None:
        print(f"hvd_ext: error: {error}", file=sys.stderr, flush=True)
        ending.abort(error.exit_code)

    if within_s <= 0:
        abort()
    timer = threading.Timer(within_s, abort)
    timer.daemon = True
    timer.start()
    _timers.append((timer, error))


def ends_after() -> HvdExtError | None:
    """Return the error after which the job ends soon, if there is one."""
    return _timers[0][1] if _timers else None


def go_on() -> None:
    """Withdraw the end of the job that `end_job` has begun, after the error was handled."""
    while _timers:
        _timers.pop()[0].cancel()
