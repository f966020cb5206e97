"""Evidence that ranks lack cores, from the kernel's counts of their waiting for one."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hvprof.analysis.causes.kinds import Kind
from hvprof.analysis.conditions import Condition
from hvprof.analysis.waiting.call_costs import CallCost
from hvprof.analysis.waiting.rank_time import RankTime
from hvprof.model import RankRecording

# The least factor of threads that need a core over cores, and the least share of the run that they
# wait.
_CROWDED, _QUEUED = 1.15, 0.05
# If no rank is late, ranks also need cores for their exchanges.
_CROWDED_EVENLY = 0.5
_MOST = 0.5
# Ranks without a core for this share of the run have a cause outside of the program.
_WITHOUT = 0.1
# The share of the time in MPI that late ranks must explain.
_EXPLAINS = 1 / 3
# A rank that never sleeps is on a core, or waits for one, for this share of the run.
_AWAKE = 0.9
# If there are more ranks than cores, they wait for each other when they use this share of the
# cores.
_SATURATED = 0.8


@dataclass(frozen=True, slots=True)
class Shortage:
    """A host whose cores do not suffice, or ranks that do not get theirs.

    Attributes:
        host: its name.
        here: its ranks.
        cores: number of its cores.
        threads: average number of its ranks' threads that need a core.
        queued_s: how long a rank waited for one; the minimum over the ranks if all of them wait.
        ranks: ranks that wait for a core while the others do not; empty if all do.
        bound: whether its ranks may use only some of its cores.
    """

    kind: Kind
    host: str
    here: int
    cores: int
    threads: float = 0.0
    queued_s: float = 0.0
    ranks: tuple[int, ...] = ()
    bound: bool = False
    condition: Condition | None = None


def shortage(
    ranks: Mapping[int, RankRecording],
    times: Sequence[RankTime],
    known: Sequence[Condition],
    exchanges: Sequence[CallCost] = (),
) -> Shortage | None:
    """Return the shortage of cores that explains the run; None if there is none, or if unknown.

    Args:
        ranks: ranks by number.
        times: times of the ranks.
        known: conditions of the machines.
        exchanges: all calls, if no rank is late: with more ranks than cores, exchanges need the
            cores, too.
    """
    in_exchange_s = _in_exchange(times, exchanges)
    by_host: dict[str, list[RankTime]] = {}
    for one in times:
        by_host.setdefault(one.host, []).append(one)
    for host, here in by_host.items():
        recorded = [ranks[one.rank] for one in here]
        cores = max(one.host_cores or one.cores for one in recorded)
        quota = next((c for c in known if c.kind == "quota" and host in c.hosts), None)
        if quota:
            return Shortage(Kind.QUOTA, host, len(here), cores, condition=quota)
        if cores and all(one.busy is not None for one in here):
            found = _crowd(host, here, cores, in_exchange_s) or _without(
                host, here, recorded, cores
            )
            if found:
                return found
    return None


def _in_exchange(times: Sequence[RankTime], exchanges: Sequence[CallCost]) -> Mapping[int, float]:
    """Return how long each rank was in MPI without waiting for ranks outside of it."""
    calls_s, waits_s = defaultdict[int, float](float), defaultdict[int, float](float)
    for one in exchanges:
        calls_s[one.rank] += one.cell.time_s
        waits_s[one.rank] += one.wait_s
    outside_s = sum(one.outside_s for one in times)
    return {
        one.rank: max(
            min(calls_s[one.rank], one.mpi_s) - min(waits_s[one.rank], outside_s - one.outside_s),
            0.0,
        )
        for one in times
        if one.rank in calls_s
    }


def _crowd(
    host: str, here: Sequence[RankTime], cores: int, in_exchange_s: Mapping[int, float]
) -> Shortage | None:
    """Find a host on which more threads of the ranks need a core than it has."""
    wanted = sum(one.busy or 0.0 for one in here)
    queued = max(one.queued_s / one.run_s for one in here)
    least = _CROWDED
    if in_exchange_s and len(here) > cores:
        least = _CROWDED_EVENLY
        # If other programs have the cores, or ranks sleep, the ranks do not fill them.
        if _saturate(here, cores):
            wanted += sum(in_exchange_s.get(one.rank, 0.0) / one.run_s for one in here)
    if wanted <= least * cores or queued <= _QUEUED:
        return None
    threaded = sum(one.other_threads for one in here) > _MOST * wanted
    if not threaded and len(here) <= cores:
        return None
    kind = Kind.THREADS_SHARE_CORES if threaded else Kind.RANKS_SHARE_CORES
    return Shortage(kind, host, len(here), cores, wanted)


def _saturate(here: Sequence[RankTime], cores: int) -> bool:
    run_s = sum(one.run_s for one in here) / len(here)
    return sum(one.cpu_s for one in here) > _SATURATED * cores * run_s


def _without(
    host: str, here: Sequence[RankTime], recorded: Sequence[RankRecording], cores: int
) -> Shortage | None:
    """Find ranks that wait for cores that other programs use.

    A rank that waits in MPI may poll, and then it waits for a core there, too, for long if it
    yields its core each time. So if all ranks wait, the one that waits least counts; if only some
    wait, their time outside of MPI counts. Ranks that yield and never sleep use every core that
    they get, so other programs have the rest.
    """
    run_s = sum(one.run_s for one in here) / len(here)
    if len(here) > cores and _saturate(here, cores):
        return None
    own_s = [one.own_s for one in here]
    outside_s = [one.outside_s for one in here]
    bound = any(0 < one.cores < cores for one in recorded)
    yields = any(one.yields for one in recorded)
    least_s = min(one.outside_s - one.own_s if yields else one.main_queued_s for one in here)
    if yields and all(one.cpu_s + one.main_queued_s > _AWAKE * one.run_s for one in here):
        got_s = sum(one.cpu_s for one in here) / min(len(here), cores)
        least_s = max(least_s, run_s - got_s)
    # If the work is uneven, the wait is longer in the same proportion.
    longer = run_s / max(run_s - least_s, 0.05 * run_s)
    uneven_s = longer * (max(own_s) - sum(own_s) / len(own_s))
    if least_s > max(_WITHOUT * run_s, uneven_s):
        return Shortage(Kind.WITHOUT_CORES, host, len(here), cores, queued_s=least_s, bound=bound)
    middle_s = (min(outside_s) + max(outside_s)) / 2
    late = tuple(one.rank for one in here if one.outside_s > middle_s)
    if max(outside_s) - min(outside_s) < _WITHOUT * run_s:
        return None
    # What the late ranks lack must explain what the others spend in MPI.
    waited_s = max(outside_s) - _mean(outside_s)
    if waited_s < _EXPLAINS * _mean(one.mpi_s for one in here):
        return None
    return late_without(here, late, cores, bound=bound)


def late_without(
    here: Sequence[RankTime], late: Sequence[int], cores: int, *, bound: bool = False
) -> Shortage | None:
    """Return the cores for which late ranks waited; None if they would be late with them, too.

    If all ranks compete with other programs for cores, ranks with more work also wait longer for
    one. The measure is the ratio of their time outside of MPI to that of the others.
    """
    slow = [one for one in here if one.rank in late]
    others = [one for one in here if one.rank not in late]
    if len(slow) != len(late) or 2 * len(slow) > len(here) or not slow:
        return None
    longer_s = max(one.outside_s for one in slow) - min(one.outside_s for one in others)
    queued_s = min(one.outside_s - one.own_s for one in slow)
    longer = _mean(one.outside_s for one in slow) / _mean(one.outside_s for one in others) - 1
    longer_by_itself = _mean(one.own_s for one in slow) / _mean(one.own_s for one in others) - 1
    if queued_s < _MOST * longer_s or longer_by_itself > _MOST * longer:
        return None
    host = slow[0].host
    return Shortage(Kind.WITHOUT_CORES, host, len(here), cores, 0.0, queued_s, (*late,), bound)


def _mean(times_s: Iterable[float]) -> float:
    return max(statistics.fmean(times_s), 1e-9)
