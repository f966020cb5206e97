"""Rank 0's part of a negotiation: the ranks' requests, and the answers. Pure.

A collective runs once every rank has requested it under the same name. Only rank 0 compares the
requests, so that all ranks learn of a difference, and none waits for data that do not come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvd_ext.errors import HvdExtError, MismatchError
from hvd_ext.job.stalls import WARN_AFTER_S, StallReport, name_ranks

log = logging.getLogger("hvd_ext")
JOIN, LEAVE = "join", "leave"


class HorovodInternalError(MismatchError, RuntimeError):
    """A collective that failed on all ranks, under the name that Horovod gives such an error."""


class InvalidRequestError(HorovodInternalError, ValueError):
    """A request that no rank can serve, under both names that Horovod gives such errors."""


@dataclass(frozen=True, slots=True)
class Request:
    """A rank's request for a collective.

    Attributes:
        name: the same on every rank; only one request at a time may have it.
        kind: "allreduce", "broadcast", ...
        facts: values that must be equal on all ranks.
        own: values that may differ; every rank gets those of all ranks.
        problem: the reason why this rank cannot take part, in which case no rank does; otherwise
            empty.
    """

    name: str
    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    own: Any = None
    problem: str = ""

    @property
    def title(self) -> str:
        """Return the collective's name for messages."""
        return f"hvd.{self.kind} {self.name!r}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: it runs, or fails; if `fatal`, all later ones fail, too.

    Attributes:
        name: name of the request.
        own: values that each rank has added to its request; None for a rank that has joined.
        for_joined: the request, if ranks have joined, which take part without one.
        error: why it fails.
        fatal: whether all later collectives fail.
    """

    name: str
    own: tuple[Any, ...] = ()
    for_joined: Request | None = None
    error: HvdExtError | None = None
    fatal: bool = False


class Coordinator:
    """The requests that not all ranks have made yet.

    Attributes:
        left: ranks that make no more requests.
    """

    def __init__(self, size: int, hosts: Sequence[str], timeout_s: float) -> None:
        """Begin without requests.

        Args:
            size: the number of ranks.
            hosts: host name of every rank.
            timeout_s: how long to wait for a rank.
        """
        self.left: set[int] = set()
        self._ranks, self._hosts, self._timeout_s = {*range(size)}, hosts, timeout_s
        self._table: dict[str, dict[int, Request]] = {}
        self._since: dict[str, float] = {}
        self._warned: set[str] = set()
        self._joined: dict[int, None] = {}  # in order

    def note(self, rank: int, request: Request) -> None:
        """Take a rank's request."""
        if request.kind == LEAVE:
            self.left.add(rank)
        elif request.kind == JOIN:
            self._joined[rank] = None
        else:
            self._table.setdefault(request.name, {})[rank] = request
            self._since.setdefault(request.name, time.monotonic())

    def decide(self) -> list[Answer]:
        """Return the answers to requests that all ranks have made by now."""
        answers = []
        for name, requests in list(self._table.items()):
            if self.left:
                # A rank that made a request but left without waiting counts as missing.
                if requests.keys() - self.left:
                    answers.append(self.ended(sorted(self.left), _any(requests).title))
            elif not self._missing(requests):
                answers.append(self._answer(name, requests))
                del self._table[name], self._since[name]
                self._warned.discard(name)
        if self._joined.keys() == self._ranks:
            answers.append(Answer(JOIN, (list(self._joined)[-1],)))
            self._joined.clear()
        elif self._joined and self.left:
            answers.append(self.ended(sorted(self.left), "hvd.join()"))
        return answers

    def give_up_late(self) -> list[Answer]:
        """Return the answer that ends all requests, if a rank is too late; warns before that."""
        now = time.monotonic()
        for name, since_s in self._since.items():
            missing = sorted(self._missing(self._table[name]))
            title = _any(self._table[name]).title
            if now - since_s > self._timeout_s:
                error = StallReport(missing, title, self._timeout_s).error(self._hosts)
                return [Answer("", error=error, fatal=True)]
            if now - since_s > WARN_AFTER_S and name not in self._warned:
                self._warned.add(name)
                names = name_ranks(missing, self._hosts)
                log.warning("hvd_ext: %s waits for %s since %.0f s", title, names, WARN_AFTER_S)
        return []

    def ended(self, ranks: Sequence[int], title: str) -> Answer:
        """Return the answer that ends all requests because ranks have left."""
        report = StallReport(ranks, title, self._timeout_s, ended=True)
        return Answer("", error=HorovodInternalError(report.sentence(self._hosts)), fatal=True)

    def _missing(self, requests: Iterable[int]) -> set[int]:
        return self._ranks - {*requests} - self._joined.keys()

    def _answer(self, name: str, requests: Mapping[int, Request]) -> Answer:
        first = _any(requests)
        for rank, request in sorted(requests.items()):
            if request.problem:
                problem = f"{first.title}: rank {rank}: {request.problem}"
                return Answer(name, error=InvalidRequestError(problem))
        difference = _difference(requests)
        if self._joined and first.kind != "allreduce" and not difference:
            names = name_ranks(sorted(self._joined), self._hosts)
            difference = f"{names} called hvd.join(), after which other ranks may only allreduce"
        if difference:
            return Answer(name, error=HorovodInternalError(f"{first.title}: {difference}"))
        own = tuple(requests[r].own if r in requests else None for r in sorted(self._ranks))
        return Answer(name, own, first if self._joined else None)


def _any(requests: Mapping[int, Request]) -> Request:
    return requests[min(requests)]


def _difference(requests: Mapping[int, Request]) -> str:
    """Describe the difference between ranks' requests; "" if there is none."""
    first = min(requests)
    mine = {"kind": requests[first].kind, **requests[first].facts}
    for rank, request in sorted(requests.items()):
        theirs = {"kind": request.kind, **request.facts}
        for what, value in mine.items():
            if theirs.get(what) != value:
                return (
                    f"{what} is {theirs.get(what)} on rank {rank}, and {value} on rank {first}: "
                    "give the same on every rank"
                )
    return ""
