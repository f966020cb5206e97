"""Ranks, calls and activities of ranks, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hvd_ext.units import format_bytes
from hvprof.live.standing import Call, Process, Standing, Thread

_SHORT = 8
_OUTSIDE = {
    Process.RUNS: "computes outside of MPI",
    Process.SLEEPS: "sleeps or waits outside of MPI",
}
_PROCESS = {
    Process.STOPPED: "is stopped (SIGSTOP or a debugger): continue it with kill -CONT {pid}",
    Process.SILENT: "gives no sign of life: its process (pid {pid}) is stopped, or its host hangs",
    Process.EXITED: "has exited without MPI_Finalize",
    Process.FINALIZED: "has ended MPI",
    Process.NOT_STARTED: "has not started MPI",
}


def seconds(value: float) -> str:
    """Format a time: "41 s", "12 min"."""
    return f"{value:.0f} s" if value < 600 else f"{value / 60:.0f} min"


def ranks(found: Iterable[int]) -> str:
    """Name ranks briefly: "rank 3", "ranks 0 to 2", "ranks 0, 1 and 5 to 9"."""
    listed = sorted(found)
    return f"{'ranks' if len(listed) > 1 else 'rank'} {numbers(listed)}"


_MANY = {"has": "have", "is": "are", "waits": "wait", "sleeps": "sleep", "computes": "compute"}


def numbers(ascending: Sequence[int]) -> str:
    """Format ascending numbers, with at most 8 parts: "3", "0 to 2", "0, 1 and 5 to 9"."""
    parts: list[str] = []
    first = 0
    for place, number in enumerate(ascending):
        if place + 1 == len(ascending) or ascending[place + 1] != number + 1:
            run = ascending[first : place + 1]
            parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
            first = place + 1
    if len(parts) > _SHORT:
        return f"{', '.join(parts[:_SHORT])}, ... ({len(ascending)} in all)"
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def operation(name: str) -> str:
    """Return the name of a call as in MPI's reference, without MPI_."""
    return name[:1].upper() + name[1:]


def call(one: Call) -> str:
    """Describe a call: "Allreduce 1042 of world (102 MB)", "Wait for Irecv from rank 2"."""
    what = operation(one.what)
    if one.about:
        size = f" ({format_bytes(one.message_bytes)})" if one.message_bytes else ""
        return f"{one.about}{size}"
    if one.collective and one.group:
        said = f"{what} {one.number or ''}".rstrip() + f" of {one.group.name}"
    elif one.peer is not None and "send" in one.what and one.what != "sendrecv":
        said = f"{what} to rank {one.peer}"
    elif one.peer is not None:
        said = f"{what} from rank {one.peer}"
    elif one.any_source:
        said = f"{what} from any rank"
    else:
        said = what
    if one.tag is not None and not one.collective:
        said += f" with tag {one.tag}"
    if one.message_bytes:
        said += f" ({format_bytes(one.message_bytes)})"
    if one.coordination:
        said = f"Horovod's coordination, {said}"
    if one.started:
        among = f"all of {one.requests} requests, " if one.requests > 1 else ""
        said = f"{operation(one.operation)} for {among}{said}"
    elif one.requests > 1:
        said += f" for {one.requests} requests"
    return said


def who(one: Standing) -> str:
    """Name a rank with its place: "rank 3 (node2, pid 4711)"."""
    return f"rank {one.rank} ({one.host}, pid {one.pid})" if one.host else f"rank {one.rank}"


def does(one: Standing, blocked: Thread | None) -> str:
    """Return a rank's activity, as the predicate of a sentence."""
    if one.process is Process.GONE:
        return f"is gone (signal {one.signal})" if one.signal else "is gone: its process has ended"
    if one.process in _PROCESS:
        return _PROCESS[one.process].format(pid=one.pid)
    disk = ", and waits for the disk" if one.process is Process.ON_DISK else ""
    line = f" ({one.line})" if one.line else ""
    if blocked and blocked.call:
        return f"is in {call(blocked.call)}{disk}"
    thread = next((t for t in one.threads if t.main), None) or min(
        one.threads, key=lambda t: t.since_s, default=None
    )
    if thread is None:
        return f"has not called MPI yet{line}{disk}"
    if thread.region:
        kind = "" if thread.region_kind == "other" else f" ({thread.region_kind})"
        where = f"the region {thread.region!r}{kind}"
        return f"has been in {where} for {seconds(thread.region_s)}{line}{disk}"
    if thread.call:
        return f"is in {call(thread.call)}, for {seconds(thread.since_s)}{disk}"
    how = _OUTSIDE.get(one.process, "is outside of MPI") + line
    if not thread.last:
        return f"{how}{disk}"
    last = call(replace(thread.last, message_bytes=0))
    return f"{how}, since it left {last} {seconds(thread.since_s)} ago{disk}"


def ended(standings: Iterable[Standing]) -> str:
    """Describe the end of ranks: "ranks 0 and 1 have ended MPI; rank 2 is gone (signal 9)"."""
    ways: dict[str, list[int]] = {}
    for one in standings:
        ways.setdefault(does(one, None), []).append(one.rank)
    said = (f"{ranks(which)} {_of_many(how) if which[1:] else how}" for how, which in ways.items())
    return "; ".join(said)


def _of_many(does: str) -> str:
    """Return the words for several ranks, from those for one."""
    verb, _, rest = does.partition(" ")
    return f"{_MANY.get(verb, verb)} {rest}"
