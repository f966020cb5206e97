"""The graph of waiting: ranks, and the collectives that they are in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hvprof.live.standing import Process, Standing, Thread

ENDED = frozenset({Process.GONE, Process.EXITED, Process.FINALIZED, Process.NOT_STARTED})
_ENDS = ENDED | {Process.STOPPED, Process.SILENT}
Place = tuple[str, int]
# A node: a rank, or a collective by its communicator's id and its number there.
Node = int | Place
_PARTLY = ("comm_create_group",)


@dataclass(slots=True)
class Meeting:
    """A collective in which ranks are blocked.

    Or a region of communication, which has no call.

    Attributes:
        inside: the ranks in it, with their threads.
        absent: ranks of the communicator that have not entered it.
        left: ranks that have entered it and are not blocked there.
    """

    inside: dict[int, Thread] = field(default_factory=dict)
    absent: tuple[int, ...] = ()
    left: tuple[int, ...] = ()

    @property
    def thread(self) -> Thread:
        """Return the call of one of the ranks."""
        return next(iter(self.inside.values()))

    @property
    def blocked_s(self) -> float:
        """Return how long the first of the ranks has been in it."""
        return max(t.since_s if t.call else t.region_s for t in self.inside.values())


@dataclass(frozen=True, slots=True)
class Waits:
    """The graph.

    Attributes:
        blocked: the blocked thread of each rank.
        meetings: the collectives in which ranks are blocked.
        targets: the nodes for which each node waits; none if unknown.
    """

    blocked: Mapping[int, Thread]
    meetings: Mapping[Place, Meeting]
    targets: Mapping[Node, tuple[Node, ...]]


def graph(standings: Sequence[Standing], longer_than_s: float) -> Waits:
    """Build the graph of waiting.

    Args:
        standings: standings of all ranks, in order.
        longer_than_s: time after which a call counts as blocked.
    """
    blocked = {
        one.rank: thread
        for one in standings
        if one.process not in ENDED and (thread := _blocked(one, longer_than_s))
    }
    meetings: dict[Place, Meeting] = {}
    targets: dict[Node, tuple[Node, ...]] = {}
    for rank, thread in blocked.items():
        place = meeting_of(thread)
        if place:
            meetings.setdefault(place, Meeting()).inside[rank] = thread
            targets[rank] = (place,)
        else:
            peer = thread.call.peer if thread.call else None
            targets[rank] = () if peer is None else (peer,)
    for place, meeting in meetings.items():
        others = [one for one in _members(meeting, standings) if one.rank not in meeting.inside]
        absent = [one for one in others if not _entered(one, place, meeting)]
        meeting.absent = tuple(one.rank for one in absent)
        meeting.left = tuple(one.rank for one in others if one not in absent)
        targets[place] = (*meeting.absent, *_hindering(meeting, standings, blocked))
    return Waits(blocked, meetings, targets)


def meeting_of(thread: Thread) -> Place | None:
    """Return the collective or the region in which a thread is, if known."""
    call = thread.call
    if call and call.late:
        return (call.about, 1)
    if call is None:
        return (f"region {thread.region}", 1) if thread.region_kind == "communication" else None
    named = call.collective and call.group and call.number and call.operation not in _PARTLY
    return (call.group.id, call.number) if named and call.group else None


def _members(meeting: Meeting, standings: Sequence[Standing]) -> list[Standing]:
    call = meeting.thread.call
    if call is None:
        return list(standings)
    if call.late:
        calls = (thread.call for thread in meeting.inside.values() if thread.call)
        late = {rank for one in calls for rank in one.late}
        return [standings[rank] for rank in sorted(late) if rank < len(standings)]
    ranks = (call.group and call.group.ranks) or ()
    return [standings[rank] for rank in ranks if rank < len(standings)]


def _hindering(
    meeting: Meeting, standings: Sequence[Standing], blocked: Mapping[int, Thread]
) -> tuple[int, ...]:
    """Return the ranks that entered it and without which it does not end."""
    dead = {Process.STOPPED, Process.SILENT, Process.GONE, Process.EXITED}
    found = [rank for rank in (*meeting.inside, *meeting.left) if standings[rank].process in dead]
    call = meeting.thread.call
    if call and call.started:
        # A rank that has started it and computes may move no data meanwhile.
        found += [rank for rank in meeting.left if rank not in blocked and rank not in found]
    return tuple(found)


def _blocked(one: Standing, longer_than_s: float) -> Thread | None:
    """Return the thread that represents a rank: its first one if blocked, or the longest."""
    found = [t for t in one.threads if t.call and t.since_s >= longer_than_s]
    # A thread that serves other ranks may wait for any of them all the time.
    found = [t for t in found if t.main or not (t.call and t.call.any_source)]
    found = found or [
        t
        for t in one.threads
        if not t.call and t.region_kind == "communication" and t.region_s >= longer_than_s
    ]
    return max(found, key=lambda thread: (thread.main, thread.since_s), default=None)


def _entered(one: Standing, place: Place, meeting: Meeting) -> bool:
    call = meeting.thread.call
    if call and call.by_name:
        return place[1] in one.submitted
    if one.entered.get(place[0], 0) >= place[1]:
        return True
    # Calls that make communicators have no number themselves, and use the next one.
    return any(meeting_of(t) == place for t in one.threads)


def ends(waits: Waits, standings: Sequence[Standing]) -> list[tuple[Node, ...]]:
    """Find the ends of chains of waiting: single nodes, and circles that wait for themselves.

    These are the strongly connected components from which no other is reached (Tarjan, 1972), each
    sorted. A rank whose process is stopped or gone is an end in any case.
    """
    final = {
        one.rank for one in standings if one.process in ENDED | {Process.STOPPED, Process.SILENT}
    }
    targets = {node: () if node in final else to for node, to in waits.targets.items()}
    nodes = {*targets, *(node for to in targets.values() for node in to), *waits.meetings}
    parts = _components(nodes, targets)
    part_of = {node: place for place, part in enumerate(parts) for node in part}
    left = {part_of[n] for n, to in targets.items() for one in to if part_of[one] != part_of[n]}
    return [part for place, part in enumerate(parts) if place not in left]


def _components(
    nodes: Iterable[Node], targets: Mapping[Node, tuple[Node, ...]]
) -> list[tuple[Node, ...]]:
    """Yield strongly connected components, without recursion, as a chain may be very long."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    found: list[tuple[Node, ...]] = []
    for root in sorted(nodes, key=str):
        if root in index:
            continue
        work = [(root, iter(targets.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, following = work[-1]
            step = next(following, None)
            if step is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    part = stack[cut:]
                    del stack[cut:]
                    on_stack.difference_update(part)
                    found.append(tuple(sorted(part, key=str)))
            elif step not in index:
                index[step] = low[step] = len(index)
                stack.append(step)
                on_stack.add(step)
                work.append((step, iter(targets.get(step, ()))))
            elif step in on_stack:
                low[node] = min(low[node], index[step])
    return found


def waiting_for(waits: Waits, ends_at: Iterable[Node]) -> dict[Node, Node]:
    """Map each node that waits for these, directly or not, to the next node on its path."""
    into: dict[Node, list[Node]] = {}
    for node, to in waits.targets.items():
        for one in to:
            into.setdefault(one, []).append(node)
    ways: dict[Node, Node] = {}
    reached = list(ends_at)
    seen = set(reached)
    for node in reached:
        for before in into.get(node, ()):
            if before not in seen:
                seen.add(before)
                ways[before] = node
                reached.append(before)
    return ways
