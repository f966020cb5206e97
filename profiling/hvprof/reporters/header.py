"""The header of a report, on the terminal and in HTML alike."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice

from hvd_ext.errors import StallError
from hvd_ext.units import counted, format_bytes, plural
from hvprof.analysis.between_hosts import BetweenHosts
from hvprof.analysis.free_communication import FreeSpeedup
from hvprof.model import RankRecording, Recording, Step

# Parts of a step: names as shown, and the attributes of StepParts.
STEP_PARTS = {
    "compute": "compute_s",
    "slowed by communication": "slowed_s",
    "exposed communication": "exposed_s",
    "input": "io_s",
    "waiting for a core": "waiting_s",
    "other": "other_s",
}
_NAMED_RANKS = 16
_COSTLY = 0.1
_LIBRARY = 48


def facts(recording: Recording) -> list[str]:
    """The time, ranks, hosts, duration and MPI library of a recording."""
    ranks = recording.ranks
    when = recording.start_unix_s or min(rank.start_unix_s for rank in ranks)
    # A timeline does not say when it was written, nor where.
    found = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))] if when else []
    if recording.source == "timeline":
        found.append(f"Horovod timeline of a job of {counted(recording.size, 'rank')}")
    else:
        hosts = len({rank.host for rank in ranks})
        of_all = f"{len(ranks)} of {counted(recording.size, 'rank')}"
        found.append(f"{of_all} on {counted(hosts, 'host')}")
    if recording.duration_s is not None:
        found.append(f"{recording.duration_s:.1f} s")
    if recording.exit_code is not None:
        found.append(f"exit code {recording.exit_code}")
    return [*found, *filter(None, [library(recording)]), recorder_cost(recording)]


def free_text(free: FreeSpeedup) -> str:
    """The speedup without communication, and its interval."""
    text = f"{free.speedup:.2f} x with zero-cost communication ({free.low:.2f} to {free.high:.2f})"
    return text if free.knows_queue else f"{text}; its CPU contention is unknown here"


def kernel_counts(step: Step) -> list[str]:
    """Kernel counters of the training thread in a step; empty without any."""
    if not step.cpu_s:
        return []
    return [
        f"training thread, a step: {step.cpu_s / step.index * 1e3:.2f} ms on a core, "
        f"{counted(round(step.preemptions / step.index), 'preemption')}, "
        f"{counted(round(step.page_faults / step.index), 'page fault')}"
    ]


def library(recording: Recording) -> str:
    """Name and version of the MPI library, from a text that may be a page long."""
    # MVAPICH2 and MPICH write tabs and lines, which `printable` has replaced.
    words = recording.ranks[0].mpi_library.split(",")[0].replace("\N{REPLACEMENT CHARACTER}", " ")
    name = " ".join(words.split())
    return f"{name[:_LIBRARY]}…" if len(name) > _LIBRARY else name


def recorder_cost(recording: Recording) -> str:
    """Overhead of recording, as the ranks measured it."""
    ranks = recording.ranks
    if recording.source == "timeline":
        return "recorder: none; Horovod wrote the timeline, its overhead is unknown"
    cost_s = max(rank.recorder_cost_s for rank in ranks)
    calls = max(sum(cell.calls for cell in rank.cells) for rank in ranks)
    if not cost_s:
        return f"recorder: {counted(calls, 'call')}; what recording takes was not measured"
    of_torch = any(cell.source == "torch" for rank in ranks for cell in rank.cells)
    measured = "as measured" if of_torch else "measured at start"
    return (
        f"recorder: {cost_s * 1e6:.2f} us a call, {measured}; "
        f"{counted(calls, 'call')}, {cost_s * calls * 1e3:.3g} ms a rank"
    )


def wire_text(wire: BetweenHosts) -> str:
    """Bytes that hvd_ext sent between hosts, and the size of its gradients."""
    sent, held = (format_bytes(round(n)) for n in (wire.wire_bytes, wire.tensor_bytes))
    return f"{sent} sent for gradients of {held} ({wire.ratio:.2f} x)"


def registration(recording: Recording) -> str:
    """Hit rate of the registration cache; if it cannot be read, a text and not 0 %.

    The cache is the MPI library's if the library exposes one, else hvd_ext's cache of CUDA IPC
    handles.
    """
    known = [rank.registration_cache for rank in recording.ranks if rank.registration_cache]
    if not known:
        return "not exposed"
    source = known[0].source
    hits = sum(cache.hits for cache in known)
    lookups = hits + sum(cache.misses for cache in known)
    if not lookups:
        return f"not used ({source})"
    return f"{100 * hits / lookups:.1f} % of {lookups} ({source})"


def warnings(recording: Recording) -> list[str]:
    """Why the job hung, and gaps in its recording."""
    found = []
    present = {rank.rank for rank in recording.ranks}
    # No more than are named: a damaged file may claim a billion ranks.
    missing = list(
        islice((rank for rank in range(recording.size) if rank not in present), _NAMED_RANKS + 1)
    )
    dropped = sum(rank.dropped_calls for rank in recording.ranks)
    unnamed = sum(rank.unnamed_calls for rank in recording.ranks)
    if recording.hang:
        ended = recording.exit_code == StallError.exit_code
        found.append(f"{'ended because it' if ended else 'it'} hung: {recording.hang}")
    # A timeline is written by one rank for all, and says nothing about MPI.
    if recording.source != "timeline":
        if missing:
            found.append(f"warning: no recording of {_ranks(missing)}")
        found += _unfinished(recording.ranks)
    found += _costly(recording.ranks)
    if dropped:
        found.append(f"warning: the histogram had no room for {counted(dropped, 'call')}")
    if unnamed:
        found.append(
            f"warning: {counted(unnamed, 'call or region is', 'calls and regions are')} counted as "
            '"other", as their names had no room: name regions alike in every step'
        )
    return found


def _costly(ranks: Sequence[RankRecording]) -> Iterator[str]:
    """Recording that takes a large part of the run, unless ranks wait meanwhile."""
    shares = [
        one.recorder_cost_s * sum(cell.calls for cell in one.cells) / (end_s - one.start_unix_s)
        for one in ranks
        if (end_s := one.until_unix_s) and end_s > one.start_unix_s
    ]
    if (most := max(shares, default=0.0)) > _COSTLY:
        yield (
            f"warning: recording takes up to {100 * most:.0f} % of the run, as calls are many and "
            "short: times without hvprof are shorter"
        )


def _unfinished(ranks: Sequence[RankRecording]) -> Iterator[str]:
    """The ranks that did not finish: those that waited for others, and those that did not."""
    unfinished = [rank for rank in ranks if rank.state == "unfinished"]
    by_call: dict[str, list[int]] = {}
    for rank in unfinished:
        # What others did at last is not known.
        if rank.seen_unix_s is not None:
            by_call.setdefault(rank.open_call, []).append(rank.rank)
    said = [
        f"{_ranks(numbers)} {f'in {operation}' if operation else 'outside of MPI'}"
        for operation, numbers in sorted(by_call.items())
    ]
    if unfinished:
        which = _ranks([rank.rank for rank in unfinished])
        where = f" (at last {', '.join(said)})" if said else ""
        yield f"warning: {which} did not finish{where}; calls until then are counted"
    exited = [rank.rank for rank in ranks if rank.state == "exited"]
    if exited:
        yield f"warning: {_ranks(exited)} ended without MPI_Finalize"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_NAMED_RANKS])) + (", ..." * (len(ranks) > _NAMED_RANKS))
    return f"{plural(len(ranks), 'rank')} {shown}"
