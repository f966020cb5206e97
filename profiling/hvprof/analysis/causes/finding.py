"""The cause of what communication costs a run, by one list of rules.

A rank that waits is never blamed. Waiting is time within MPI, so the rank at the end of every chain
of waiting spends longer outside of MPI than the others, and that rank is named. If all ranks are
outside equally long, none is. Evidence comes first, because ranks that lack cores are late
alternately, whatever else they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from hvprof.analysis.causes.cause import Cause
from hvprof.analysis.causes.cores import Shortage, late_without, shortage
from hvprof.analysis.causes.kinds import Kind
from hvprof.analysis.causes.patterns import apart, is_pipeline, is_send_chain, master
from hvprof.analysis.causes.unfinished import Went, last_call
from hvprof.analysis.conditions import Condition, slow_cores
from hvprof.analysis.waiting.call_costs import (
    CallCost,
    OperationCost,
    call_costs,
    is_derived,
    operation_costs,
)
from hvprof.analysis.waiting.rank_time import RankTime, calling_threads, rank_times
from hvprof.model import RankRecording, Recording

# Shorter runs are not analyzed, because their first calls connect the ranks. Ranks that did not
# finish end at their last sign of life, of which there is one every half second.
_SHORT_S, _SHORT_UNFINISHED_S = 0.1, 2.0
_ALL_THERE = (Kind.TURNS, Kind.ROOTS, Kind.BARRIERS, Kind.CALLS, Kind.SMALL_MESSAGES, Kind.TRANSFER)
_LATE = (Kind.LATE_RANK, Kind.LATE_SENDER, Kind.LATE_RECEIVER)
# Shares of the run: below the first, communication needs no change; above the second, ranks that
# differ are worth naming.
_LIGHT, _UNEVEN = 0.08, 0.02
# Shares of communication, and of its waiting, that a cause must explain.
_MOST, _EXPLAINS = 0.5, 1 / 3
# Work one after another sums up to about one run; ranks differ by less than this factor then.
_ONE_RUN, _ALIKE = (0.75, 1.2), 1.5
# Ranks that share cores also alternate, in shorter turns.
_TURN_S = 1e-3
# Few ranks have work to spare, and the others are in MPI for less than this part of their time.
_SPARE_SHARE, _WORKING_SHARE = 0.25, 0.3
_SMALL_BYTES = 8192
# A rank in these calls waits only for the root.
_FROM_A_ROOT = frozenset({"bcast", "scatter", "scatterv"})
_FILE_BYTES = 4e6
# Contiguous bytes of a host's memory move faster.
_MEMORY_BYTES_S = 1e9


def find_cause(recording: Recording, known: Sequence[Condition] = ()) -> Cause | None:
    """Name the cause; None without traffic, or if no rank gave a sign of life.

    A program whose exchanges run on separate threads (Horovod, hvd_ext) has no cause here, because
    it is not blocked while it is in MPI.

    Args:
        recording: recording of one job.
        known: conditions of its machines.
    """
    times = rank_times(recording)
    calls = call_costs(recording)
    costs = operation_costs(recording, calls)
    if not times or not costs or in_background(recording):
        return None
    ranks = {one.rank: one for one in recording.ranks}
    short = shortage(ranks, times, known)
    run_s = sum(one.run_s for one in times) / len(times)
    kind, late = (short.kind, short.ranks) if short else _kind(recording, times, costs, calls)
    if kind in _LATE and (short := _late_without(ranks, times, late)):
        kind = short.kind
    may_be_cores = kind in (*_LATE, Kind.HOST)
    slow = slow_cores(recording.ranks, late, _longer(times, late)) if may_be_cores else None
    if slow:
        kind = Kind.SLOW_CORES
    if kind in _ALL_THERE and (short := shortage(ranks, times, known, calls)):
        kind = short.kind
    unfinished = any(one.state == "unfinished" for one in recording.ranks)
    last = last_call(recording.ranks, sum(one.mpi_s for one in times))
    if last:
        kind, late, short = Kind.LAST_CALL, last.ranks, None
    elif recording.size == 1 or run_s < (_SHORT_UNFINISHED_S if unfinished else _SHORT_S):
        kind, late, short = Kind.ONE_RANK if recording.size == 1 else Kind.SHORT, (), None
    link = next((one for one in known if one.kind == "link"), None)
    if link and kind in _ALL_THERE:
        kind = Kind.LINK
    condition = short.condition if short else None
    if kind is Kind.LINK:
        condition = link
    elif kind is Kind.SLOW_CORES:
        condition = slow
    outside = {one.rank: one.outside_s for one in times}
    others = [time_s for rank, time_s in outside.items() if rank not in late]
    # The time of a rank that was killed before its first sign of life is not known.
    of_late = [time_s for rank, time_s in outside.items() if rank in late]
    shares = [100 * one.mpi_s / one.run_s for one in times]
    return Cause(
        kind=kind,
        ranks=late,
        run_s=run_s,
        mpi_s=sum(one.mpi_s for one in times) / len(times),
        low_percent=min(shares),
        high_percent=max(shares),
        late_s=sum(of_late) / len(of_late) if of_late else 0.0,
        others_s=sum(others) / len(others) if others else 0.0,
        largest=costs[0],
        wait_s=sum(cost.wait_s for cost in costs),
        time_s=sum(cost.time_s for cost in costs),
        host=next((t.host for t in times if t.rank in late), ""),
        shortage=short,
        last_call=last.operation if last else "",
        last_call_s=last.time_s if last else 0.0,
        went=last.how if last else Went.OUTSIDE,
        condition=condition,
        threads_in_mpi=calling_threads(recording),
        files_bytes=max((one.file_bytes for one in times if one.rank in late), default=0.0),
        chain=_chain(recording, late),
    )


def _late_without(
    ranks: Mapping[int, RankRecording], times: Sequence[RankTime], late: tuple[int, ...]
) -> Shortage | None:
    host = next(one.host for one in times if one.rank in late)
    here = [one for one in times if one.host == host]
    cores = max(ranks[one.rank].host_cores or ranks[one.rank].cores for one in here)
    bound = any(0 < ranks[one.rank].cores < cores for one in here)
    known = cores and all(one.busy is not None for one in here)
    return late_without(here, late, cores, bound=bound) if known else None


def _longer(times: Sequence[RankTime], late: tuple[int, ...]) -> float:
    """Return the factor by which late ranks work longer than the others."""
    own_s = [one.own_s for one in times if one.rank in late]
    others_s = [one.own_s for one in times if one.rank not in late]
    return fmean(own_s) / max(fmean(others_s), 1e-9) if own_s and others_s else 0.0


def in_background(recording: Recording) -> bool:
    """Whether the exchanges run on separate threads, as those of Horovod and hvd_ext do."""
    cells = (cell for rank in recording.ranks for cell in rank.cells)
    return recording.source == "timeline" or any(
        cell.traffic == "control" or cell.source == "hvd_ext" for cell in cells
    )


def _kind(
    recording: Recording,
    times: Sequence[RankTime],
    costs: Sequence[OperationCost],
    calls: Sequence[CallCost],
) -> tuple[Kind, tuple[int, ...]]:
    ranks, run_s = len(times), sum(one.run_s for one in times) / len(times)
    mpi_s = sum(one.mpi_s for one in times) / ranks
    outside = sorted(one.outside_s for one in times)
    mean_s = sum(outside) / ranks
    waiting_s = outside[-1] - mean_s
    if mpi_s < _LIGHT * run_s and waiting_s < 2 * _UNEVEN * run_s:
        return Kind.LIGHT, ()
    wait_s, time_s = sum(cost.wait_s for cost in costs), sum(cost.time_s for cost in costs)
    low, high = _ONE_RUN
    alike = outside[-1] < _ALIKE * mean_s
    one_by_one = ranks > 2 and alike and low < sum(outside) / run_s < high
    waits_s = wait_s / sum(cost.calls * cost.share for cost in costs)
    if group := apart(times, calls):
        return Kind.APART, group.ranks
    chained = wait_s > _EXPLAINS * time_s and is_send_chain(recording.ranks)
    if one_by_one and wait_s > _MOST * time_s and waits_s > _TURN_S and not chained:
        return Kind.SERIAL, ()
    uneven = waiting_s > max(_UNEVEN * run_s, _EXPLAINS * mpi_s, _MOST * wait_s)
    if uneven:
        middle_s = (outside[0] + outside[-1]) / 2
        late = tuple(one.rank for one in times if one.outside_s > middle_s)
        spare = [one for one in times if one.rank not in late]
        if len(spare) <= max(1, _SPARE_SHARE * ranks) and ranks > 2:
            working = [one for one in times if one.rank in late]
            if _mean_mpi_s(working) < _WORKING_SHARE * _mean_mpi_s(spare):
                return Kind.SPARE_RANK, ()
        hands_out = master(recording.ranks)
        if hands_out and hands_out.rank not in late:
            return Kind.PIECES, ()
        if 2 * len(late) <= ranks:
            return _how_late(recording, times, late), late
    if chained:
        return Kind.SEND_CHAIN, ()
    first = costs[0]
    if wait_s > _MOST * time_s and is_pipeline(recording.ranks):
        return Kind.PIPELINE, ()
    if first.operation == "barrier":
        return Kind.BARRIERS, ()
    if wait_s > _MOST * time_s or first.wait_s > _MOST * first.time_s:
        # If the root were always the same, it would be late, or would wait elsewhere.
        by_turns = first.operation in _FROM_A_ROOT and _all_wait(times, calls, first)
        return (Kind.ROOTS if by_turns else Kind.TURNS), ()
    asks = first.asking_s > max(first.wait_s, first.time_s - first.wait_s - first.asking_s)
    if first.message_bytes is None or asks:
        return Kind.CALLS, ()
    if first.message_bytes <= _SMALL_BYTES:
        return Kind.SMALL_MESSAGES, ()
    return (Kind.DERIVED_TYPE if _packs(recording, first) else Kind.TRANSFER), ()


def _all_wait(times: Sequence[RankTime], calls: Sequence[CallCost], first: OperationCost) -> bool:
    """Whether each rank waits in calls of an operation, about as long as the others."""
    waits = {one.rank: 0.0 for one in times}
    for one in calls:
        if one.cell.operation == first.operation and one.rank in waits:
            waits[one.rank] += one.wait_s
    return min(waits.values()) > _MOST * first.wait_s


def _packs(recording: Recording, first: OperationCost) -> bool:
    """Whether messages within a host have a type with gaps, and take longer than their bytes."""
    cells = [cell for rank in recording.ranks for cell in rank.cells if cell.message_bytes]
    moved = sum(cell.message_bytes for cell in cells)
    gaps = sum(cell.message_bytes for cell in cells if is_derived(cell))
    one_host = len({rank.host for rank in recording.ranks}) == 1
    slow = first.time_s * _MEMORY_BYTES_S > first.total_bytes * first.share
    return one_host and slow and gaps > _MOST * moved


def _mean_mpi_s(times: Sequence[RankTime]) -> float:
    return sum(one.mpi_s for one in times) / len(times)


def _how_late(recording: Recording, times: Sequence[RankTime], late: tuple[int, ...]) -> Kind:
    files = [one.file_bytes for one in times if one.rank in late]
    of_others = [one.file_bytes for one in times if one.rank not in late]
    if min(files) > _FILE_BYTES and min(files) > 4 * max(of_others):
        return Kind.FILES
    hosts = {one.host for one in times}
    slow = {one.host for one in times if one.rank in late}
    whole = {one.rank for one in times if one.host in slow} == set(late)
    if len(hosts) > 1 and len(slow) == 1 and whole and len(late) > 1:
        return Kind.HOST
    blocked = {"from": 0.0, "to": 0.0}
    for rank in recording.ranks:
        if rank.rank not in late:
            for partner in rank.partners:
                blocked[partner.direction] += partner.blocked_s
    in_mpi_s = sum(one.mpi_s for one in times if one.rank not in late)
    direction = max(blocked, key=blocked.__getitem__)
    if blocked[direction] < _MOST * in_mpi_s:
        return Kind.LATE_RANK
    return {"from": Kind.LATE_SENDER, "to": Kind.LATE_RECEIVER}[direction]


def _chain(recording: Recording, late: tuple[int, ...]) -> tuple[int, ...]:
    """Return the longest chain of ranks that mostly wait for the next one, up to a late rank."""
    awaited: dict[int, int] = {}
    for rank in recording.ranks:
        of_partner: dict[int, float] = {}
        for one in rank.partners:
            of_partner[one.rank] = of_partner.get(one.rank, 0.0) + one.blocked_s
        if of_partner and rank.rank not in late:
            awaited[rank.rank] = max(of_partner, key=of_partner.__getitem__)
    chains: list[tuple[int, ...]] = []
    for first in awaited:
        chain = [first]
        while chain[-1] in awaited and awaited[chain[-1]] not in chain:
            chain.append(awaited[chain[-1]])
        if chain[-1] in late:
            chains.append(tuple(chain))
    longest = max(chains, key=len, default=())
    return longest if len(longest) > 2 else ()
