"""The places in the program that call MPI, with their cost: mpiP's main table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hvprof.analysis.waiting.call_costs import call_costs
from hvprof.format.sites import places_of
from hvprof.model import RankRecording, Recording


@dataclass(frozen=True, slots=True)
class SiteCost:
    """Calls of one operation from one place in the program, on all ranks.

    Attributes:
        operation: see `Cell`; "" for all places that found no room in a rank's table.
        place: "halo.c:212 (exchange)", "train.py:42", "exchange in libhalo.so" or
            "libhalo.so + 0x1234".
        ranks: ranks that call it.
        calls: the most calls of any rank.
        time_s: time of a rank, the mean over all ranks of the job.
        worst_s: time of the rank with the most.
        max_s: the longest call.
        wait_s: the part of time_s that is waiting, as `call_costs` estimates it for the operation.
        percent: share of the run.
        by_mpi: the operation is MPI's, not torch.distributed's.
    """

    operation: str
    place: str
    ranks: int
    calls: int
    time_s: float
    worst_s: float
    max_s: float
    wait_s: float
    percent: float
    by_mpi: bool = True

    @property
    def function(self) -> str:
        """The function: "MPI_Waitall", or "allreduce" of torch.distributed."""
        return f"MPI_{self.operation.capitalize()}" if self.by_mpi else self.operation

    @property
    def short(self) -> str:
        """The place in few words: "at halo.c:212", "called by swap", "in libhalo.so"; or ""."""
        line, _, _ = self.place.partition(" (")
        function, within, _ = self.place.partition(" in ")
        file, offset, _ = self.place.partition(" + 0x")
        if ":" in line and line.rpartition(":")[2].isdecimal():
            return f"at {line}"
        if within:
            return f"called by {function}"
        return f"in {file}" if offset else ""


@dataclass(frozen=True, slots=True)
class _Part:
    """A rank's calls at one place."""

    rank: int
    calls: int
    time_s: float
    max_s: float
    wait_s: float


def site_costs(recording: Recording, run_s: float) -> list[SiteCost]:
    """The costs by place, the longest first; none of recordings without call sites."""
    waits: dict[tuple[int, str], float] = defaultdict(float)
    for cost in call_costs(recording):
        waits[cost.rank, cost.cell.operation] += cost.wait_s
    ends = [rank.until_unix_s for rank in recording.ranks if rank.until_unix_s]
    places = places_of(
        (site for rank in recording.ranks for site in rank.sites), max(ends, default=None)
    )
    parts: dict[tuple[str, str], list[_Part]] = defaultdict(list)
    for rank in recording.ranks:
        shares = _waiting(rank, waits)
        for site, wait_s in zip(rank.sites, shares, strict=True):
            place = places[site.key] if site.operation else "other places"
            part = _Part(rank.rank, site.calls, site.time_s, site.max_s, wait_s)
            parts[site.operation, place].append(part)
    cells = (cell for rank in recording.ranks for cell in rank.cells)
    of_torch = {cell.operation for cell in cells if cell.source == "torch"}
    found = [
        replace(_cost(of, some, len(recording.ranks), run_s), by_mpi=of[0] not in of_torch)
        for of, some in parts.items()
    ]
    return sorted(found, key=lambda one: -one.time_s)


def _cost(of: tuple[str, str], parts: Sequence[_Part], ranks: int, run_s: float) -> SiteCost:
    calls: dict[int, int] = defaultdict(int)
    of_rank_s: dict[int, float] = defaultdict(float)
    for one in parts:
        calls[one.rank] += one.calls
        of_rank_s[one.rank] += one.time_s
    time_s = sum(of_rank_s.values()) / ranks
    return SiteCost(
        operation=of[0],
        place=of[1],
        ranks=len(calls),
        calls=max(calls.values()),
        time_s=time_s,
        worst_s=max(of_rank_s.values()),
        max_s=max(one.max_s for one in parts),
        wait_s=min(time_s, sum(one.wait_s for one in parts) / ranks),
        percent=100 * time_s / run_s if run_s else 0.0,
    )


def _waiting(rank: RankRecording, waits: dict[tuple[int, str], float]) -> list[float]:
    """The waiting of each site: a rank's in the operation, by what calls take above the rest.

    Calls of an operation that do not wait take equally long, as far as sites know.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for site in rank.sites:
        sums[site.operation][0] += site.time_s
        sums[site.operation][1] += site.calls
    above = []
    for site in rank.sites:
        time_s, calls = sums[site.operation]
        transfer_s = max(time_s - waits.get((rank.rank, site.operation), 0.0), 0.0) / calls
        above.append(max(site.time_s - site.calls * transfer_s, 0.0))
    whole: dict[str, float] = defaultdict(float)
    for site, above_s in zip(rank.sites, above, strict=True):
        whole[site.operation] += above_s
    return [
        above_s * min(1.0, waits.get((rank.rank, site.operation), 0.0) / whole[site.operation])
        if whole[site.operation]
        else 0.0
        for site, above_s in zip(rank.sites, above, strict=True)
    ]
