"""Ends a job that is stuck between nodes, naming the ranks that did not arrive.

A thread that is blocked in MPI cannot ask which ranks are missing, so each rank has a second
thread: it answers other ranks' questions about this rank's progress, and asks its own questions
when an exchange has lasted too long. Within a node the window's counters show it.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, cast

from hvd_ext.job.abandoned import abandon, abandoned_on_error
from hvd_ext.job.stalls import STALL_TIMEOUT, StallReport, end_job
from hvd_ext.job.waiting import message, until

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.job.topology import Topology

_ASK_TAG, _ANSWER_TAG = 1, 2
_LOOK_EVERY_S = 0.5
# How long an exchange may take once a rank has left.
_LEFT_TIMEOUT_S = 2.0
_ANSWER_WITHIN_S = 5.0
# For waits within a node, while the watchdog limits the exchange between nodes.
NO_LIMIT_S = 1e9
# A question that was announced has a few bytes.
_QUESTION_WITHIN_S = 1.0


class Watchdog:
    """Watches this rank's exchanges; one per arena, made by every rank."""

    def __init__(
        self,
        topology: Topology,
        comm: MPI.Comm,
        round_: int,
        timeout_s: float,
        occasion: str = "a gradient exchange",
        setting: str = STALL_TIMEOUT,
    ) -> None:
        """Start watching.

        Args:
            topology: nodes and ranks.
            comm: all ranks; only watchdogs use it.
            round_: how often watchdogs have used `comm`; their questions may still be there.
            timeout_s: how long an exchange may take.
            occasion: what the exchange is, for the error.
            setting: source of the time limit, for the error.
        """
        self._occasion, self._setting = occasion, setting
        self._hosts, self._ranks = topology.hosts_by_rank, topology.ranks
        self._departures = topology.departures
        self._number = self._departures.add_watchdog()
        self._timeout_s = timeout_s
        self._comm = comm
        self._round = round_
        self._entered = 0
        self._since: float | None = None
        self._answers: list[MPI.Request] = []  # messages that may still be in flight
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hvd_ext watchdog", daemon=True)
        self._thread.start()

    def guard(self) -> AbstractContextManager[None]:
        """Count an exchange, and end the job if it takes longer than allowed."""
        return self

    def __enter__(self) -> None:
        self._entered += 1
        self._departures.enter(self._number, self._entered)
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._since = None

    def hurry(self, timeout_s: float) -> None:
        """Allow an exchange no more than this from now on."""
        self._timeout_s = min(self._timeout_s, timeout_s)

    def close(self) -> None:
        self._closing.set()
        # The garbage collector may call this from any thread.
        if threading.current_thread() is not self._thread:
            self._thread.join()
        abandon(self._answers)

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            self._answer()
            since = self._since
            if since is None:
                continue
            # This exchange will never end if a rank has left before it.
            ended = sorted(self._departures.before(self._number, self._entered))
            limit_s = min(self._timeout_s, _LEFT_TIMEOUT_S) if ended else self._timeout_s
            if time.monotonic() - since > limit_s:
                missing = ended or self._ask()
                if self._since == since:
                    who = [self._ranks[rank] for rank in missing]
                    report = StallReport(who, self._occasion, limit_s, bool(ended), self._setting)
                    end_job(report.error(self._hosts), within_s=0)

    def _answer(self) -> None:
        from mpi4py import MPI

        status = MPI.Status()
        self._answers = [answer for answer in self._answers if not answer.Test()]
        while question := self._comm.improbe(tag=_ASK_TAG, status=status):
            if _received(question.irecv()) != self._round:
                continue
            # A rank that waits itself, perhaps in an earlier exchange, is not the cause.
            there = math.inf if self._since is not None else self._entered
            answer = self._comm.isend((self._round, there), dest=status.source, tag=_ANSWER_TAG)
            self._answers.append(answer)

    def _ask(self) -> list[int]:
        others = [rank for rank in range(self._comm.size) if rank != self._comm.rank]
        asked = [self._comm.isend(self._round, dest=rank, tag=_ASK_TAG) for rank in others]
        answers = {rank: self._comm.irecv(source=rank, tag=_ANSWER_TAG) for rank in others}
        behind = set(others)

        def over() -> bool:
            self._answer()
            for rank in list(answers):
                done, answer = answers[rank].test()
                if not done:
                    continue
                of_round, there = cast("tuple[int, float]", answer)
                if of_round != self._round:
                    answers[rank] = self._comm.irecv(source=rank, tag=_ANSWER_TAG)
                    continue
                del answers[rank]
                if there >= self._entered:
                    behind.discard(rank)
            return not answers

        until(over, _ANSWER_WITHIN_S)
        abandon([*asked, *answers.values()])
        return sorted(behind)


def _received(question: MPI.Request) -> object:
    """Receive a rank's question; None if the message does not arrive because the rank has ended."""
    with abandoned_on_error([question]):
        arrived, round_ = message(question, _QUESTION_WITHIN_S)
    if not arrived:
        abandon([question])
    return cast("object", round_)
