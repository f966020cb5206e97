"""Ranks that called different collectives at the same place of their communicator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvd_ext.units import format_bytes
from hvprof.live import words
from hvprof.live.standing import Standing
from hvprof.live.waits import Meeting, Place, meeting_of

_ROOTED = ("bcast", "reduce", "gather", "gatherv", "scatter", "scatterv")
# Operations in which every rank's payload has the same size.
_EQUAL = ("allreduce", "reduce", "scan", "exscan", "bcast", "allgather", "alltoall")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The different calls of ranks at one place.

    Attributes:
        called: ranks by their call, in words; the call of most ranks comes first.
    """

    called: Mapping[str, tuple[int, ...]]

    @property
    def blamed(self) -> tuple[int, ...]:
        """Return the ranks in the minority; all if there is no majority."""
        sides = list(self.called.values())
        even = len(sides[0]) == len(sides[1])
        return tuple(sorted(rank for side in (sides if even else sides[1:]) for rank in side))


def mismatch(place: Place, meeting: Meeting, standings: Sequence[Standing]) -> Mismatch | None:
    """Find the difference between ranks' calls: the operation, its root, or its size."""
    calls = {rank: thread.call for rank, thread in meeting.inside.items() if thread.call}
    names = {rank: call.what for rank, call in calls.items()}
    for rank in meeting.left:
        there = [t.call for t in standings[rank].threads if t.call and meeting_of(t) == place]
        left = standings[rank].latest.get(place[0], {}).get(place[1])
        if there or left:
            names[rank] = there[0].what if there else left or ""
    found = _sides({rank: words.operation(name) for rank, name in names.items()})
    if found or not names:
        return found
    name = next(iter(names.values()))
    kind, shown = name.removeprefix("i"), words.operation(name)
    roots = {rank: call.peer for rank, call in calls.items() if call.peer is not None}
    if kind in _ROOTED:
        found = _sides({rank: f"{shown} with root {root}" for rank, root in roots.items()})
    if found or kind not in _EQUAL:
        return found
    sizes = {rank: call.message_bytes for rank, call in calls.items() if call.message_bytes}
    return _sides({rank: f"{shown} of {format_bytes(size)}" for rank, size in sizes.items()})


def _sides(called: Mapping[int, str]) -> Mismatch | None:
    sides: dict[str, list[int]] = {}
    for rank in sorted(called):
        sides.setdefault(called[rank], []).append(rank)
    if len(sides) < 2:
        return None
    order = sorted(sides.items(), key=lambda side: -len(side[1]))
    return Mismatch({what: tuple(ranks) for what, ranks in order})
