"""Costs of calls: the part of their time that is waiting, and the bytes that they wait for."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hvprof.analysis.waiting.rank_time import rank_times
from hvprof.model import POLLS, Cell, RankRecording, Recording


class _Slowest(NamedTuple):
    """Time that a message may need: more than this is waiting, whatever else is known."""

    message_s: float
    byte_s: float


# On a slow network, and in the memory of a host.
_BETWEEN_HOSTS, _ON_A_HOST = _Slowest(1e-3, 1e-7), _Slowest(5e-5, 2e-9)
# A message needs this time to arrive; a call that only submits it may return sooner.
_LATENCY_S = 2e-6
_MESSAGES = frozenset({"send", "ssend", "rsend", "bsend", "recv", "mrecv", "sendrecv"})
_ONE_SIDED = frozenset({"put", "get", "accumulate", "get_accumulate"})
# Calls that negotiate or use files, and may take any time by themselves.
_MAKING = (
    *("comm_", "cart_", "graph_", "dist_graph_", "intercomm_", "file_"),
    *("win_create", "win_allocate", "win_free"),
)
# Calls that wait for earlier calls, and have no bytes themselves.
WAITS = ("wait", "test")
_ENDS_OF_WINDOWS = (
    *("win_fence", "win_flush", "win_unlock", "win_complete", "win_wait", "win_test", "win_sync"),
)


@dataclass(frozen=True, slots=True)
class CallCost:
    """Calls of one kind and size on one rank.

    Attributes:
        wait_s: the part of the cell's time that is waiting, by `call_costs`.
        asking_s: the part of polls that neither waiting nor their messages explain.
    """

    rank: int
    cell: Cell
    wait_s: float
    asking_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OperationCost:
    """Calls of one operation on all ranks, their time as a mean over the ranks.

    Attributes:
        share: share of the ranks that make such calls.
        calls: mean number of calls of one of these ranks.
        messages: number of messages of one of these ranks: its calls, or those for which they wait.
        message_bytes: bytes of a message; None if unknown.
        time_s: time of a rank.
        wait_s: the part of time_s that is waiting, by `call_costs`.
        asking_s: the part of polls that neither waiting nor their messages explain.
    """

    operation: str
    share: float
    calls: float
    messages: float
    message_bytes: float | None
    time_s: float
    wait_s: float
    asking_s: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Return the bytes of a rank that makes such calls; 0 if unknown."""
        return self.messages * (self.message_bytes or 0.0)


def is_derived(cell: Cell) -> bool:
    """Whether its messages have a derived type."""
    return cell.datatype.startswith("derived")


def is_wait(operation: str) -> bool:
    """Whether calls wait for requests of other calls."""
    return operation.startswith((*WAITS, *_ENDS_OF_WINDOWS))


def call_costs(recording: Recording) -> list[CallCost]:
    """Data traffic by rank, operation, size and communicator.

    Without a trace, waiting is estimated: it is the time of a call above that of calls of the same
    kind and size on the fastest rank, or above the time that a slow network, or a host's memory,
    would need for its bytes. No message is faster than a latency. Calls in a polling loop wait no
    longer than the other ranks are busy.
    """
    one_host = len({rank.host for rank in recording.ranks}) == 1
    slowest = _ON_A_HOST if one_host else _BETWEEN_HOSTS
    groups: dict[tuple[str, int], dict[int, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for rank in recording.ranks:
        for cell in rank.cells:
            if cell.traffic == "data" and cell.calls:
                family = "message" if cell.operation in _MESSAGES else cell.operation
                groups[family, cell.low_bytes][rank.rank].append(cell)
    started = {rank.rank: _started(rank) for rank in recording.ranks}
    found = []
    for (family, _), of_ranks in groups.items():
        quickest_s = min(_call_s(cells) for cells in _by_operation(of_ranks))
        for number, cells in of_ranks.items():
            for cell in cells:
                most_s = slowest.message_s + slowest.byte_s * cell.message_bytes / cell.calls
                if is_wait(family):
                    waited = started[number].waited_by(family)
                    most_s = slowest.message_s + slowest.byte_s * waited.message_bytes / cell.calls
                    if waited.is_derived:
                        most_s = math.inf
                # Packing data of a type with gaps may take any time.
                if is_derived(cell) or family.startswith(_MAKING):
                    most_s = math.inf
                least_s = _LATENCY_S if family == "message" else 0.0
                transfer_s = cell.calls * max(min(quickest_s, most_s), least_s)
                if family in POLLS:
                    # The number of polls says nothing about the message.
                    moved = started[number].waited_by(family)
                    transfer_s = slowest.message_s * moved.messages
                    transfer_s += slowest.byte_s * moved.message_bytes
                transfer_s = min(cell.time_s, transfer_s)
                found.append(CallCost(number, cell, cell.time_s - transfer_s))
    return _without_asking(recording, found)


def _without_asking(recording: Recording, costs: Sequence[CallCost]) -> list[CallCost]:
    """Return the costs, with the waiting of polls limited by the other ranks' work."""
    polls_s: dict[int, float] = defaultdict(float)
    busy_s = {one.rank: one.outside_s for one in rank_times(recording)}
    for one in costs:
        if one.cell.operation in POLLS:
            polls_s[one.rank] += one.wait_s
        elif one.rank in busy_s:
            busy_s[one.rank] += one.cell.time_s - one.wait_s
    if len(busy_s) < recording.size:
        return [*costs]
    share = {
        rank: min(1.0, (sum(busy_s.values()) - busy_s[rank]) / time_s) if time_s else 1.0
        for rank, time_s in polls_s.items()
    }
    return [
        replace(
            one,
            wait_s=one.wait_s * share[one.rank],
            asking_s=one.wait_s * (1 - share[one.rank]),
        )
        if one.cell.operation in POLLS
        else one
        for one in costs
    ]


def operation_costs(recording: Recording, costs: Sequence[CallCost]) -> list[OperationCost]:
    """Return the costs by operation, the longest first."""
    ranks = len(recording.ranks)
    started = {rank.rank: _started(rank) for rank in recording.ranks}
    by_operation: dict[str, list[CallCost]] = defaultdict(list)
    for one in costs:
        by_operation[one.cell.operation].append(one)
    found = []
    for name, some in by_operation.items():
        calls = sum(one.cell.calls for one in some)
        messages, total_bytes = calls, sum(one.cell.message_bytes for one in some)
        callers = {one.rank for one in some}
        if is_wait(name):
            waited = [started[rank].waited_by(name) for rank in callers]
            messages = sum(one.messages for one in waited)
            total_bytes = sum(one.message_bytes for one in waited)
        found.append(
            OperationCost(
                operation=name,
                share=len(callers) / ranks,
                calls=calls / len(callers),
                messages=messages / len(callers),
                message_bytes=total_bytes / messages if total_bytes else None,
                time_s=sum(one.cell.time_s for one in some) / ranks,
                wait_s=sum(one.wait_s for one in some) / ranks,
                asking_s=sum(one.asking_s for one in some) / ranks,
            )
        )
    return sorted(found, key=lambda cost: -cost.time_s)


@dataclass(frozen=True, slots=True)
class _Moved:
    messages: int = 0
    message_bytes: int = 0
    is_derived: bool = False


@dataclass(frozen=True, slots=True)
class _Started:
    """Calls that a rank started, and for which other calls wait.

    Attributes:
        ended: ended requests by the operation that waited for them; empty if a recording lacks
            them.
    """

    by_requests: _Moved
    by_windows: _Moved
    ended: dict[str, _Moved]

    def waited_by(self, operation: str) -> _Moved:
        if operation.startswith(_ENDS_OF_WINDOWS):
            return self.by_windows
        return self.ended.get(operation, _Moved()) if self.ended else self.by_requests


def _started(rank: RankRecording) -> _Started:
    by_requests = [
        cell
        for cell in rank.cells
        if cell.traffic == "data" and cell.message_bytes
        if cell.operation.startswith("i") or cell.operation in ("start", "startall")
    ]
    by_windows = [cell for cell in rank.cells if cell.operation in _ONE_SIDED]
    started = _moved(by_requests)
    ended: dict[str, _Moved] = {}
    for cell in rank.cells:
        if cell.traffic == "data" and cell.ended:
            before = ended.get(cell.operation, _Moved())
            ended[cell.operation] = _Moved(
                before.messages + cell.ended,
                before.message_bytes + cell.ended_bytes,
                started.is_derived,
            )
    return _Started(started, _moved(by_windows), ended)


def _moved(cells: Sequence[Cell]) -> _Moved:
    message_bytes = sum(cell.message_bytes for cell in cells)
    derived = sum(cell.message_bytes for cell in cells if is_derived(cell))
    return _Moved(sum(cell.calls for cell in cells), message_bytes, 2 * derived > message_bytes)


def _by_operation(of_ranks: dict[int, list[Cell]]) -> Iterator[list[Cell]]:
    """Return the cells of each rank and operation: a late sender's receivers wait, not it."""
    for cells in of_ranks.values():
        for name in {cell.operation for cell in cells}:
            yield [cell for cell in cells if cell.operation == name]


def _call_s(cells: Sequence[Cell]) -> float:
    return sum(cell.time_s for cell in cells) / sum(cell.calls for cell in cells)
