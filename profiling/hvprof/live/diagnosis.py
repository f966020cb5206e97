"""The diagnosis of a hanging job: from its ranks' calls to sentences that name the causes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hvprof.live import words
from hvprof.live.cause import Cause
from hvprof.live.links import slow_link
from hvprof.live.mismatch import Mismatch, mismatch
from hvprof.live.standing import Process, Standing
from hvprof.live.untargeted import without_targets
from hvprof.live.waits import ENDED, Meeting, Node, Place, Waits, ends, graph, waiting_for

_LISTED = 4
# Ranks reach the places in which they are blocked one after the other.
_SOON = 0.5
_BROKEN = frozenset({Process.GONE, Process.EXITED, Process.STOPPED, Process.SILENT})
_KINDS = {
    Process.STOPPED: "stopped",
    Process.SILENT: "stopped",
    Process.GONE: "gone",
    Process.EXITED: "gone",
    Process.FINALIZED: "finalized",
    Process.NOT_STARTED: "not_started",
    Process.ON_DISK: "disk",
}


def diagnose(standings: Sequence[Standing], longer_than_s: float) -> tuple[Cause, ...]:
    """Find why ranks are blocked; the cause for which most ranks wait comes first.

    Args:
        standings: standings of all ranks, in order.
        longer_than_s: time after which a call counts as blocked, or half of it if another rank is
            blocked.
    """
    if all(one.process in ENDED for one in standings):
        return ()
    waits = graph(standings, longer_than_s)
    if waits.blocked:
        waits = graph(standings, _SOON * longer_than_s)
    found: list[Cause] = []
    settled: set[Node] = set()
    for place, meeting in waits.meetings.items():
        differing = mismatch(place, meeting, standings)
        if differing:
            settled.add(place)
            found.append(_mismatched(place, meeting, differing, waits))
    nearest = _nearest(waits)
    sinks: dict[tuple[Place | None, str], list[int]] = {}
    for part in ends(waits, standings):
        if settled.intersection(part):
            continue
        if len(part) > 1 or part[0] in waits.targets.get(part[0], ()):
            found.append(_deadlock(part, waits, standings))
        elif isinstance(part[0], tuple):
            found.append(_by_link(_unfinished(part[0], waits, standings), standings))
        elif part[0] < len(standings):
            rank = part[0]
            sinks.setdefault((nearest.get(rank), _kind(rank, waits, standings)), []).append(rank)
    found += [_late(near, kind, ranks, waits, standings) for (near, kind), ranks in sinks.items()]
    found = [cause for cause in found if cause.blocked_s >= longer_than_s]
    found = without_targets(found, waits, standings)
    blamed = {rank for cause in found for rank in cause.ranks}
    for one in standings:
        if one.process in _BROKEN and one.rank not in blamed:
            sentence = f"{words.who(one)} {words.does(one, None)}"
            found.append(Cause(_KINDS[one.process], (one.rank,), (), 0.0, sentence))
    return tuple(sorted(found, key=lambda cause: (-len(cause.waiting), cause.ranks)))


def _kind(rank: int, waits: Waits, standings: Sequence[Standing]) -> str:
    if standings[rank].process in _KINDS:
        return _KINDS[standings[rank].process]
    thread = waits.blocked.get(rank)
    if thread is None:
        return "late"
    return "any_source" if thread.call and thread.call.any_source else "unknown"


def _nearest(waits: Waits) -> dict[Node, Place]:
    """Return for each node the collective of most ranks that waits for it."""
    order = sorted(waits.meetings, key=lambda place: len(waits.meetings[place].inside))
    return {node: place for place in order for node in waits.targets[place]}


def _waiting(ways: Iterable[Node], ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(node for node in {*ways} - {*ranks} if isinstance(node, int)))


def _for_s(ranks: Iterable[int], waits: Waits) -> float:
    threads = [waits.blocked[rank] for rank in ranks if rank in waits.blocked]
    return max((t.since_s if t.call else t.region_s for t in threads), default=0.0)


def _late(
    near: Place | None,
    kind: str,
    ranks: list[int],
    waits: Waits,
    standings: Sequence[Standing],
) -> Cause:
    ranks = sorted(ranks)
    ways = waiting_for(waits, ranks)
    waiting = _waiting(ways, ranks)
    blocked_s = _for_s(waiting or ranks, waits)
    clauses: list[str] = []
    before: Node | None = None
    way = _way(near, ways, waits)
    for node in way:
        if isinstance(node, tuple):
            clauses.append(_inside(waits.meetings[node]))
        elif node not in ranks:
            does = words.does(standings[node], waits.blocked.get(node))
            how = "has not come: it " if isinstance(before, tuple) else ""
            clauses.append(f"{words.who(standings[node])} {how}{does}")
        before = node
    if before is not None:
        # A chain of messages does not begin with a collective.
        clauses[0] = clauses[0].replace(" is in ", " has been in ", 1)
    clauses.append(_those(ranks, near, waits, standings))
    named = {node for node in way if isinstance(node, int)}
    named.update(*(waits.meetings[node].inside for node in way if isinstance(node, tuple)))
    others = [rank for rank in waiting if rank not in named]
    if others:
        clauses.append(f"{words.ranks(others)} {'waits' if len(others) == 1 else 'wait'}, too")
    sentence = f"for {words.seconds(blocked_s)} {'; '.join(clauses)}"
    return Cause(kind, tuple(ranks), waiting, blocked_s, sentence)


def _way(near: Place | None, ways: dict[Node, Node], waits: Waits) -> list[Node]:
    """Return the path to the end of a chain from the farthest collective or rank."""
    meetings = [node for node in ways if isinstance(node, tuple)]
    start: Node | None = max(
        meetings, key=lambda place: len(waits.meetings[place].inside), default=None
    )
    if start is None:
        # Without a collective, the chain of messages from its beginning.
        start = next(reversed(ways), None)
    if near is not None and start is not None and start not in ways:
        start = near
    found: list[Node] = []
    while start is not None:
        found.append(start)
        start = ways.get(start)
    return found


def _inside(meeting: Meeting) -> str:
    verb = "has" if len(meeting.inside) == 1 else "have"
    return f"{words.ranks(meeting.inside)} {verb} been in {_name(meeting)}"


def _name(meeting: Meeting) -> str:
    call = meeting.thread.call
    return words.call(call) if call else f"the region {meeting.thread.region!r} (communication)"


def _those(
    ranks: list[int], near: Place | None, waits: Waits, standings: Sequence[Standing]
) -> str:
    """Return the sentences about the ranks at the end of the chain."""
    meeting = waits.meetings[near] if near else None
    said = []
    for rank in ranks[:_LISTED]:
        how = ""
        if meeting and rank in meeting.absent:
            how = "has not come: it "
        elif meeting and rank in meeting.left and standings[rank].process not in _BROKEN:
            how = "has started it and does not wait for it: it "
        does = words.does(standings[rank], waits.blocked.get(rank))
        said.append(f"{words.who(standings[rank])} {how}{does}")
    if len(ranks) > _LISTED:
        said.append(f"and so {words.ranks(ranks[_LISTED:])}")
    return "; ".join(said)


def _mismatched(place: Place, meeting: Meeting, found: Mismatch, waits: Waits) -> Cause:
    ranks = found.blamed
    call = meeting.thread.call
    group = call.group.name if call and call.group else "a communicator"
    sides = list(found.called.items())
    others = " and ".join(f"{words.ranks(who)} called {what}" for what, who in sides[:-1])
    what, who = sides[-1]
    return Cause(
        "mismatch",
        ranks,
        _waiting({*waiting_for(waits, (place,)), *meeting.inside}, ()),
        meeting.blocked_s,
        f"for {words.seconds(meeting.blocked_s)} mismatched collectives: {words.ranks(who)} called"
        f" {what} as number {place[1]} of {group}, where {others}",
    )


def _deadlock(part: tuple[Node, ...], waits: Waits, standings: Sequence[Standing]) -> Cause:
    ranks = [node for node in part if isinstance(node, int)]
    said = []
    for rank in ranks[: 2 * _LISTED]:
        text = f"{words.who(standings[rank])} {words.does(standings[rank], waits.blocked[rank])}"
        for place in waits.targets[rank]:
            if isinstance(place, tuple):
                text += f", which {words.ranks(waits.meetings[place].absent)} has not entered"
        said.append(text)
    if len(ranks) > len(said):
        said.append(f"and so on, {len(ranks)} ranks")
    ways = waiting_for(waits, part)
    blocked_s = _for_s(ranks, waits)
    return Cause(
        "deadlock",
        tuple(ranks),
        _waiting(ways, ranks) or tuple(ranks),
        blocked_s,
        f"for {words.seconds(blocked_s)} ranks have waited for each other: {'; '.join(said)}",
    )


def _by_link(cause: Cause, standings: Sequence[Standing]) -> Cause:
    """Return the cause, or the link over which data do not arrive."""
    link = slow_link(standings)
    if link is None:
        return cause
    first = cause.sentence.partition("; ")[0]
    return replace(cause, kind="link", ranks=link.ranks, sentence=f"{first}; {link.sentence}")


def _unfinished(place: Place, waits: Waits, standings: Sequence[Standing]) -> Cause:
    """Describe a collective that every rank has entered, as far as known."""
    meeting = waits.meetings[place]
    call = meeting.thread.call
    known = call is None or (call.group is not None and call.group.ranks is not None)
    text = f"{words.ranks(meeting.inside)} {'has' if len(meeting.inside) == 1 else 'have'} been in"
    if not known:
        kind, why = "unknown", "the recording does not hold which ranks belong to it"
    elif meeting.left:
        kind = "transfer"
        why = f"every rank has entered it, and {words.ranks(meeting.left)} left it: messages do not"
        why += " arrive, or a rank gave other counts"
    else:
        kind = "transfer"
        why = "every rank is in it: messages do not arrive, or ranks gave different counts"
    ranks = tuple(sorted(meeting.inside))
    return Cause(
        kind,
        ranks,
        _waiting(waiting_for(waits, (place,)), ()),
        meeting.blocked_s,
        f"for {words.seconds(meeting.blocked_s)} {text} {_name(meeting)}; {why}",
    )
