"""The order of collectives: rank 0 gets every rank's requests, and says when one may run.

Ranks may make requests in different orders, as with Horovod; all ranks follow rank 0's answers, in
the order of the answers. An answer also has the values that each rank has added to its request,
such as its number of rows, so that the collectives themselves exchange only data. Each rank has one
thread for this, which sleeps while there are no requests.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from hvd_ext.errors import HvdExtError
from hvd_ext.job.abandoned import abandon
from hvd_ext.job.stalls import StallReport
from hvd_ext.job.watchdog import Watchdog
from hvd_ext.torch.standalone.coordinator import (
    JOIN,
    LEAVE,
    Answer,
    Coordinator,
    HorovodInternalError,
    InvalidRequestError,
    Request,
)

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.job.topology import Topology

log = logging.getLogger("hvd_ext")
# The pause between two polls for messages, while a rank waits.
_LEAST_PAUSE_S, _MOST_PAUSE_S = 50e-6, 1e-3
# How much longer other ranks wait than rank 0, which knows the missing ranks.
_GRACE_S = 10.0

# For a rank that leaves with unfinished collectives: it gets no answers after this one.
_LEFT = Answer(
    LEAVE,
    error=HorovodInternalError("hvd.shutdown() before synchronize(): call synchronize() first"),
    fatal=True,
)

# Takes the values that every rank has added to its request, in rank order; None for a rank that has
# joined.
Run = Callable[[Sequence[Any]], Any]


class Negotiator:
    """The requests of this rank, and the thread that runs them."""

    def __init__(
        self, topology: Topology, timeout_s: float, joins: Callable[[Request], Run]
    ) -> None:
        """Start; collective over the world.

        Args:
            topology: nodes and ranks.
            timeout_s: how long to wait for a rank.
            joins: runs another rank's request for a rank that has joined.
        """
        world = topology.world
        self._rank, self._size, self._hosts = world.rank, world.size, topology.hosts
        self._timeout_s, self._joins = timeout_s, joins
        self._lease = topology.borrow("negotiation", world, world)
        self._talk, watched = self._lease.comms
        self._watchdog = (
            Watchdog(topology, watched, self._lease.uses, timeout_s, "a collective")
            if world.size > 1
            else None
        )
        self._coordinator = Coordinator(
            world.size, topology.hosts, timeout_s
        )  # only that of rank 0 is used
        self._lock = threading.Lock()
        self._asked: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._pending: dict[str, tuple[Request, Run, Future[Any], float]] = {}
        self._broken: HvdExtError | None = None
        self._leave: Request | None = None  # its `own` says whether the rank waits for rank 0
        self._leave_by_s = 0.0
        self._sent: list[MPI.Request] = []
        self._thread = threading.Thread(target=self._serve, name="hvd_ext negotiation", daemon=True)
        self._thread.start()

    def submit(self, request: Request, run: Run) -> Future[Any]:
        """Request a collective; the future has the result of `run`, which the thread calls.

        Raises:
            InvalidRequestError: an earlier request of this rank with the same name has not run yet.
            HvdExtError: an earlier collective ended the job's communication.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self._broken is not None:
                raise self._broken
            if request.name in self._pending:
                raise InvalidRequestError(
                    f"{request.title} while another of this name is under way: synchronize() that "
                    "one before, or name them differently"
                )
            self._pending[request.name] = (request, run, future, time.monotonic())
            self._asked.put(request)
        return future

    def close(self, within_s: float) -> bool:
        """End the thread; unfinished collectives fail, on all ranks.

        Args:
            within_s: how long rank 0 waits for the others, to answer them. A rank with unfinished
                collectives waits for rank 0, whose answers may have started one on other ranks.

        Returns:
            Whether the thread has ended.
        """
        self._leave_by_s = time.monotonic() + within_s
        with self._lock:
            waits = bool(self._pending)
        self._asked.put(Request("", LEAVE, own=waits))
        self._thread.join(within_s + 1.0)
        if self._watchdog:
            self._watchdog.close()
        if self._thread.is_alive():
            return False
        abandon(self._sent)
        self._lease.give_back()
        return True

    def _serve(self) -> None:
        try:
            pause_s = _LEAST_PAUSE_S
            while not self._at_end():
                asked = self._next(pause_s)
                self._leave = next((r for r in asked if r.kind == LEAVE), self._leave)
                self._sent = [request for request in self._sent if not request.Test()]
                heard = self._coordinate(asked) if self._rank == 0 else self._follow(asked)
                if heard or asked:
                    pause_s = _LEAST_PAUSE_S
                else:
                    self._give_up_late()
                    pause_s = min(2 * pause_s, _MOST_PAUSE_S)
            if self._rank == 0:  # ranks with later requests learn that rank 0 no longer answers
                self._send_all([self._coordinator.ended([0], "a collective")])
            self._fail(HorovodInternalError("a collective after hvd.shutdown(): call hvd.init()"))
        except HvdExtError as error:
            self._fail(error)
        except BaseException as error:
            log.exception("hvd_ext: the thread of collectives failed")
            self._fail(HorovodInternalError(f"collectives failed on rank {self._rank}: {error!r}"))

    def _at_end(self) -> bool:
        if self._leave is None or time.monotonic() > self._leave_by_s:
            return self._leave is not None
        if self._rank == 0:
            return len(self._coordinator.left) == self._size
        return not self._leave.own

    def _next(self, pause_s: float) -> list[Request]:
        """Return the requests of this rank; waits for one if none is unfinished."""
        asked: list[Request] = []
        try:
            asked.append(self._asked.get(timeout=pause_s if self._pending or self._leave else None))
            while True:
                asked.append(self._asked.get_nowait())
        except queue.Empty:
            return asked

    def _coordinate(self, asked: list[Request]) -> bool:
        """Rank 0's turn: note requests, and answer; returns whether other ranks made some."""
        heard = False
        # Before this rank's own requests, because ranks that joined while it slept have joined
        # earlier.
        for rank, requests in self._received():
            heard = True
            for request in requests:
                self._coordinator.note(rank, request)
                if request.kind == LEAVE and request.own:
                    # It first gets the earlier answers, and takes part in those.
                    self._sent.append(self._talk.isend([_LEFT], dest=rank))
        for request in asked:
            self._coordinator.note(0, request)
        self._announce(self._coordinator.decide())
        return heard

    def _follow(self, asked: list[Request]) -> bool:
        """Another rank's turn: send its requests to rank 0, and follow the answers."""
        if asked:
            self._sent.append(self._talk.isend(asked, dest=0))
        heard = False
        for _, answers in self._received():
            heard = True
            self._do(answers)
        return heard

    def _received(self) -> Iterator[tuple[int, Any]]:
        """Return the messages that have arrived, each with its sender."""
        from mpi4py import MPI

        status = MPI.Status()
        while message := self._talk.improbe(status=status):
            yield status.source, message.recv()

    def _announce(self, answers: list[Answer]) -> None:
        if answers:
            self._send_all(answers)
            self._do(answers)

    def _send_all(self, answers: list[Answer]) -> None:
        for rank in {*range(1, self._size)} - self._coordinator.left:
            self._sent.append(self._talk.isend(answers, dest=rank))

    def _do(self, answers: list[Answer]) -> None:
        for answer in answers:
            if answer.fatal and answer.error is not None:
                raise answer.error
            with self._lock:
                entry = self._pending.pop(answer.name, None)
            if entry is not None:
                _, run, future, _ = entry
            elif answer.for_joined is not None:
                run, future = self._joins(answer.for_joined), Future()
            else:
                continue
            if answer.error is not None:
                future.set_exception(answer.error)
            else:
                self._run(run, answer.own, future)

    def _run(self, run: Run, own: Sequence[Any], future: Future[Any]) -> None:
        try:
            with self._watchdog.guard() if self._watchdog else nullcontext():
                result = run(own)
        except Exception as error:  # raised in the thread that waits
            future.set_exception(error)
        else:
            future.set_result(result)

    def _give_up_late(self) -> None:
        """Stop waiting for a rank that does not arrive.

        Raises:
            StallError: names it.
        """
        if self._rank == 0:
            self._announce(self._coordinator.give_up_late())
            return
        with self._lock:
            waiting = [(since_s, r) for r, _, _, since_s in self._pending.values()]
        oldest_s = time.monotonic() - self._timeout_s - _GRACE_S
        for since_s, request in waiting:
            if request.kind != JOIN and since_s < oldest_s:
                raise StallReport([0], request.title, self._timeout_s).error(self._hosts)

    def _fail(self, error: HvdExtError) -> None:
        with self._lock:
            self._broken = error
            pending = list(self._pending.values())
            self._pending.clear()
        for _, _, future, _ in pending:
            future.set_exception(error)
