"""Ranks blocked in calls whose partner the recording does not name.

A receive from any rank waits for all others, and ends with the first message. A window's fence or
a file's collective call waits for ranks that are not known by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hvprof.live import words
from hvprof.live.cause import Cause
from hvprof.live.standing import Process, Standing
from hvprof.live.waits import ENDED, Waits

_TOGETHER = ("win_fence", "win_create", "win_allocate", "win_free", "file_", "comm_")
_STILL = ENDED | {Process.STOPPED, Process.SILENT}


def without_targets(
    causes: Sequence[Cause], waits: Waits, standings: Sequence[Standing]
) -> list[Cause]:
    """Return the causes, with the late ranks for calls that do not name their partners.

    Args:
        causes: causes by the graph.
        waits: the graph.
        standings: standings of all ranks, in order.
    """
    still = [one for one in standings if one.process in _STILL or one.rank in waits.blocked]
    kept = [cause for cause in causes if cause.kind not in ("any_source", "unknown")]
    known = {rank for cause in kept for rank in (*cause.ranks, *cause.waiting)}
    found = list(kept)
    for cause in causes:
        if cause.kind == "any_source":
            # As long as a rank computes, or another cause delays it, it may still send.
            if len(still) == len(standings) and not known:
                cause = replace(
                    cause,
                    waiting=tuple(sorted({*cause.waiting, *cause.ranks})),
                    sentence=f"{cause.sentence}; no other rank is left to send",
                )
            found.append(cause)
        elif cause.kind == "unknown":
            found.append(_absent(cause, waits, standings))
    return found


def _absent(cause: Cause, waits: Waits, standings: Sequence[Standing]) -> Cause:
    """Return the ranks that have not reached a collective call."""
    calls = [waits.blocked[rank].call for rank in cause.ranks if rank in waits.blocked]
    if not calls or not all(call and call.operation.startswith(_TOGETHER) for call in calls):
        return cause
    inside = {*cause.ranks, *cause.waiting}
    others = [
        one
        for one in standings
        if one.rank not in inside and (one.rank not in waits.blocked or one.process in _STILL)
    ]
    first = _stopped(others) or others
    if not first:
        return cause
    said = "; ".join(f"{words.who(one)} {words.does(one, None)}" for one in first[:4])
    place = words.call(calls[0]) if calls[0] else "a call"
    verb = "has" if len(cause.ranks) == 1 else "have"
    return Cause(
        "stopped" if first is not others else "late",
        tuple(one.rank for one in first),
        tuple(sorted(inside)),
        cause.blocked_s,
        f"for {words.seconds(cause.blocked_s)} {words.ranks(cause.ranks)} {verb} been in {place}; "
        f"{said}",
    )


def _stopped(ranks: Iterable[Standing]) -> list[Standing]:
    return [one for one in ranks if one.process in (Process.STOPPED, Process.SILENT)]
