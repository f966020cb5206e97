"""Reads the standings of all ranks of a recording."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hvd_ext.errors import UsageError
from hvprof.format.connections import addresses_in, connections_in
from hvprof.format.current import CurrentCalls, read_current
from hvprof.format.layout import (
    ANY_PEER,
    BY_NAME,
    COLLECTIVE_CALL,
    COORDINATION,
    IN_CALL,
    LATE,
    LATEST,
    REPORTED,
)
from hvprof.format.reader import Head, read_head, text_of
from hvprof.live.process import clock_name, process_state, sees_processes
from hvprof.live.signs import believed, interface_without_carrier, state_by_signs
from hvprof.live.standing import Call, Group, Process, Sent, Standing, Thread
from hvprof.model import Communicator
from hvprof.recording.load import RANK_FILES, latest_job

_KINDS = ("compute", "communication", "io", "other")
_ENDED = {"finalized": Process.FINALIZED, "exited": Process.EXITED}
# hvd_ext's communicators.
_OWN = "hvd_ext"
_NAMES = {"MPI_COMM_WORLD": "world", "MPI_COMM_SELF": "self"}
# "0-7" names no more ranks than a job can have.
_MOST_RANKS = 1 << 22


def read_standings(directory: Path) -> tuple[Standing, ...]:
    """Read the standing of each rank of a job, in the order of ranks.

    Ranks that have not begun their file are included. Nothing is written, and the ranks do not
    notice.

    Raises:
        UsageError: the folder holds no recording, or a file that is cut off, foreign or of
            another version.
    """
    heads = read_heads(latest_job(directory))
    return in_order({head.rank: read_standing(path, head) for path, head in heads})


def read_heads(directory: Path) -> list[tuple[Path, Head]]:
    """Return the files of the ranks that have started MPI, with their heads.

    Raises:
        UsageError: as `read_standings`.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a folder: name a folder made by hvprof record")
    paths = sorted(directory.glob(RANK_FILES))
    heads = [(path, head) for path in paths if (head := read_head(path))]
    if not heads:
        raise UsageError(
            f"no rank has started MPI in {directory}: name the folder of a job that hvprof records"
        )
    return heads


def in_order(found: Mapping[int, Standing]) -> tuple[Standing, ...]:
    """Return all ranks of a job in order, with those that have not started."""
    size = max(one.size for one in found.values())
    absent = Process.NOT_STARTED
    return believed(found.get(rank) or Standing(rank, process=absent) for rank in range(size))


def read_standing(path: Path, head: Head) -> Standing:
    """Read the standing of a file's rank."""
    current = read_current(path.with_suffix(".now"))
    process, signal = _process(head, current)
    beat = current.beat if current else None
    by_signs = process is Process.ELSEWHERE and beat is not None
    if by_signs and beat is not None:
        age = age_s(beat["at_ns"].item(), head)
        same_clock = bool(head.clock) and head.clock == clock_name()
        process = state_by_signs(beat, path.with_suffix(".now"), age, same_clock=same_clock)
    threads: tuple[Thread, ...] = ()
    entered: dict[str, int] = {}
    latest: dict[str, dict[int, str]] = {}
    sent: tuple[Sent, ...] = ()
    if current:
        groups = [_group(one) for one in head.tables.communicators]
        threads = tuple(_thread(slot, head, groups) for slot in current.slots)
        sent = tuple(_sent(one, groups) for one in current.sent)
        for place, group in enumerate(groups):
            last = current.entered[place].item()
            if group and last:
                entered[group.id] = last
                latest[group.id] = {
                    number: head.tables.name(current.latest[place][number % LATEST].item())
                    for number in range(max(1, last - LATEST + 1), last + 1)
                }
    return Standing(
        rank=head.rank,
        size=head.size,
        host=head.host,
        pid=head.pid,
        process=process,
        by_signs=by_signs,
        signal=signal,
        steps=head.steps,
        threads=threads,
        entered=entered,
        latest=latest,
        submitted=current.submitted if current else frozenset(),
        sent=sent,
        addresses=addresses_in(beat) if beat is not None else (),
        connections=connections_in(beat) if beat is not None else (),
        without_carrier=interface_without_carrier(beat) if beat is not None else "",
    )


def _process(head: Head, current: CurrentCalls | None) -> tuple[Process, int]:
    if head.state in _ENDED:
        return _ENDED[head.state], 0
    if not head.clock or head.clock != clock_name():
        return Process.ELSEWHERE, 0
    if current is None or not sees_processes(current.processes):
        return Process.ELSEWHERE, 0
    return process_state(head.pid, head.start_unix_ns)


def _sent(row: np.void, groups: list[Group | None]) -> Sent:
    place = row["communicator"].item()
    group = groups[place] if place < len(groups) else None
    return Sent(
        to=row["to"].item(),
        tag=row["tag"].item() - 1,
        message_bytes=row["bytes"].item(),
        number=row["number"].item(),
        group=group.id if group else "",
    )


def _thread(slot: np.void, head: Head, groups: list[Group | None]) -> Thread:
    flags = slot["flags"].item()
    call = _call(slot, flags, head, groups) if slot["operation"] else None
    return Thread(
        id=slot["thread"].item(),
        main=slot["thread"].item() == head.pid,
        call=call if flags & IN_CALL else None,
        since_s=age_s(slot["since_ns"].item(), head),
        last=None if flags & IN_CALL or (call and _is_own(call)) else call,
        region=text_of(slot["region"]),
        region_kind=_KINDS[min(slot["region_kind"].item(), len(_KINDS) - 1)],
        region_s=age_s(slot["region_since_ns"].item(), head),
    )


def _is_own(call: Call) -> bool:
    """Whether a call is probably hvd_ext's own, which says nothing about the program."""
    named = call.group.name if call.group else ""
    return call.operation == "comm_set_name" or named.startswith(_OWN)


def age_s(since_ns: int, head: Head) -> float:
    """Return the seconds since a time of the rank's clock; 0 for none."""
    if not since_ns:
        return 0.0
    if head.clock and head.clock == clock_name():
        age_ns = time.monotonic_ns() - since_ns
    else:
        age_ns = time.time_ns() - (head.start_unix_ns + since_ns - head.start_clock_ns)
    return max(0.0, age_ns / 1e9)


def _call(slot: np.void, flags: int, head: Head, groups: list[Group | None]) -> Call:
    place, peer = slot["communicator"].item(), slot["peer"].item()
    group = groups[place] if place < len(groups) else None
    return Call(
        operation=head.tables.name(slot["operation"].item()),
        group=group,
        number=slot["number"].item(),
        peer=peer if peer >= 0 else None,
        any_source=peer == ANY_PEER,
        message_bytes=slot["bytes"].item(),
        collective=bool(flags & COLLECTIVE_CALL),
        coordination=bool(flags & COORDINATION),
        started=head.tables.name(slot["started"].item()) if slot["started"] else "",
        requests=slot["requests"].item(),
        about=text_of(slot["about"]) if flags & REPORTED else "",
        late=_late(slot) if flags & REPORTED else (),
        by_name=bool(flags & BY_NAME),
        tag=slot["tag"].item() - 1 if slot["tag"] else None,
    )


def _late(slot: np.void) -> tuple[int, ...]:
    return tuple(slot["late"][: min(slot["late_count"].item(), LATE)].tolist())


def _group(one: Communicator) -> Group | None:
    if not one.id:
        return None
    ranks = parse_ranks(one.ranks)
    name = _NAMES.get(one.name, one.name)
    return Group(one.id, name or f"a communicator of ranks {one.ranks}", ranks)


def parse_ranks(text: str) -> tuple[int, ...] | None:
    """Return the world ranks of a text "0-7", "0-6:2" or "0,3,4"; None for "0,3,..."."""
    span, _, stride = text.partition(":")
    first, dash, last = span.partition("-")
    try:
        if dash:
            found = range(int(first), int(last) + 1, int(stride or 1))
            return tuple(found) if len(found) <= _MOST_RANKS else None
        return tuple(int(rank) for rank in text.split(","))
    except ValueError:
        return None
