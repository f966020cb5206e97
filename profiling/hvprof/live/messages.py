"""Sent messages that do not match the receive in which another rank is blocked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hvd_ext.units import format_bytes
from hvprof.format.reader import read_rank
from hvprof.live.cause import Cause
from hvprof.live.standing import Call, Standing
from hvprof.recording.load import latest_job

_MOST_RANKS = 8


def with_unreceived(
    directory: Path, standings: Sequence[Standing], causes: Sequence[Cause]
) -> tuple[Cause, ...]:
    """Return the causes, with messages of other tags that were sent to the waiting ranks.

    Args:
        directory: folder of the recording, whose files count received messages.
        standings: standings of all ranks, in order.
        causes: result of `diagnose`.
    """
    found = []
    for cause in causes:
        ranks = sorted({*cause.ranks, *cause.waiting})[:_MOST_RANKS]
        said = [text for rank in ranks for text in _unreceived(directory, rank, standings)]
        found.append(replace(cause, sentence="; ".join([cause.sentence, *said])))
    return tuple(found)


def _unreceived(directory: Path, rank: int, standings: Sequence[Standing]) -> Iterator[str]:
    """Return a sentence for each rank whose messages this one does not receive."""
    calls = [thread.call for thread in standings[rank].threads if thread.call]
    call = next((one for one in calls if one.tag is not None and _receives(one)), None)
    if call is None or call.requests > 1:
        return
    senders = [
        one
        for one in standings
        if (one.rank == call.peer or call.any_source) and any(s.to == rank for s in one.sent)
    ]
    received = _received(directory, standings[rank]) if senders else {}
    for sender in senders:
        to_it = [one for one in sender.sent if one.to == rank]
        posted = received.get(sender.rank, 0)
        # A receive that was started counts already.
        posted -= call.peer is not None and bool(call.started)
        waiting = [one for one in to_it if one.number > posted]
        group = call.group.id if call.group else ""
        if not waiting or any((one.tag, one.group) == (call.tag, group) for one in waiting):
            continue
        last = waiting[-1]
        where = f"with tag {last.tag}" if last.tag != call.tag else "on another communicator"
        yield (
            f"rank {sender.rank} has sent rank {rank} {format_bytes(last.message_bytes)} {where}, "
            f"which it has not received"
        )


def _receives(call: Call) -> bool:
    return not call.collective and ("recv" in call.what or "probe" in call.what)


def _received(directory: Path, one: Standing) -> dict[int, int]:
    """Return the messages that a rank has received, or begun to receive, by sender."""
    found = read_rank(latest_job(directory) / f"rank-{one.rank:05d}.hvprof")
    partners = found.partners if found else ()
    return {one.rank: one.messages for one in partners if one.direction == "from"}
