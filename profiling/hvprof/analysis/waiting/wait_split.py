"""Waiting and transfer: the part of the collectives' time that was waiting for late ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hvprof.analysis.summary import sized
from hvprof.analysis.waiting.call_costs import CallCost
from hvprof.analysis.waiting.collectives import COLLECTIVES, UNEVEN
from hvprof.analysis.waiting.wait_time import Waiting
from hvprof.model import Recording

# Operations that take equally long on all ranks, if none is late.
_EVEN = COLLECTIVES - UNEVEN
_NOTES = {
    "trace": (
        "The waits are from the trace: a rank waits until the last rank of the call has arrived."
    ),
    "hvd_ext": "The waits are those that hvd_ext reports for its reductions.",
    "estimate": (
        "The waits are an estimate: the extra time of a rank over the fastest rank for the same "
        "calls. Ranks that alternately wait for each other do not show; hvprof record --trace N "
        "measures them."
    ),
    "calls": (
        "The waits are an estimate: the extra time of a call over the fastest rank for the same "
        "calls, or over what its bytes need at most; hvprof record --trace N measures them."
    ),
}
# A rank that causes less than this share of all waiting does not explain it.
_LITTLE = 0.1


@dataclass(frozen=True, slots=True)
class Split:
    """Time in collectives, split into waiting and the rest.

    Attributes:
        source: its source: "trace", "hvd_ext" or "estimate".
        by_operation: (operation and size row, transfer in s, wait in s), as means over the ranks.
        waited_for: (rank, s): how long other ranks waited for a rank, as a mean over all; the
            longest first.
        covered_percent: share of the collective calls that it covers.
        by_calls: whether it is an estimate for each call, of a program that is blocked while it
            exchanges.
    """

    source: str
    by_operation: tuple[tuple[str, float, float], ...]
    waited_for: tuple[tuple[int, float], ...]
    covered_percent: float = 100.0
    by_calls: bool = False

    @property
    def note(self) -> str:
        """Describe the method of the split in a sentence or two."""
        part = self.covered_percent
        return _NOTES["calls" if self.by_calls else self.source] + (
            f" They cover the last {part:.0f} % of the calls." if part < 99.5 else ""
        )

    @property
    def wait_s(self) -> float:
        """Return the waiting of a rank, as a mean over the ranks."""
        return sum(wait for _, _, wait in self.by_operation)

    @property
    def time_s(self) -> float:
        """Return waiting and transfer of a rank, as a mean over the ranks."""
        return self.wait_s + sum(transfer for _, transfer, _ in self.by_operation)


def split(
    recording: Recording, waiting: Waiting | None, costs: Sequence[CallCost] = ()
) -> Split | None:
    """Return the best split that a recording allows; None if there is nothing to split.

    Args:
        recording: recording of one job.
        waiting: waiting by its trace.
        costs: costs of its calls, if the program is blocked in them.
    """
    if waiting is not None and waiting.operations:
        return _from_trace(recording, waiting)
    if own := _from_hvd_ext(recording):
        return own
    found = _estimate(recording)
    return _by_calls(found, recording, costs) if found and costs else found


def _from_trace(recording: Recording, waiting: Waiting) -> Split:
    ranks = len(recording.ranks)
    parts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one in waiting.operations:
        part = parts[sized(one.operation, one.low_bytes)]
        part[0] += one.transfer_s / ranks
        part[1] += one.wait_s / ranks
    peers = waiting.peers
    in_collectives_s = sum(one.wait_s for one in waiting.operations)
    in_regions_s = sum(one.wait_s for one in waiting.regions)
    if in_regions_s > in_collectives_s:
        # Horovod begins an exchange when all ranks have requested it, so a late rank delays the
        # others before it, not in it.
        parts["before an exchange"][1] = (in_regions_s - in_collectives_s) / ranks
        peers = waiting.region_peers
    waited: dict[int, float] = defaultdict(float)
    for peer in peers:
        waited[peer.waited_for] += peer.wait_s / ranks
    return Split("trace", _sorted(parts), _longest(waited), waiting.covered_percent)


def _from_hvd_ext(recording: Recording) -> Split | None:
    parts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for rank in recording.ranks:
        for cell in rank.cells:
            if cell.wait_s is not None and cell.traffic == "data":
                part = parts[sized(cell.operation, cell.low_bytes)]
                part[0] += (cell.time_s - cell.wait_s) / len(recording.ranks)
                part[1] += cell.wait_s / len(recording.ranks)
    return Split("hvd_ext", _sorted(parts), ()) if parts else None


def _estimate(recording: Recording) -> Split | None:
    times: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for rank in recording.ranks:
        for cell in rank.cells:
            if cell.traffic == "data" and cell.operation in _EVEN and cell.size == recording.size:
                times[sized(cell.operation, cell.low_bytes)][rank.rank] += cell.time_s
    count = len(recording.ranks)
    shared = {label: of for label, of in times.items() if len(of) == count and count > 1}
    if not shared:
        return None
    parts = {
        label: [min(of.values()), sum(of.values()) / count - min(of.values())]
        for label, of in shared.items()
    }
    waited: dict[int, float] = defaultdict(float)
    for of in shared.values():
        quickest = min(of, key=lambda rank: of[rank])
        waited[quickest] += sum(of.values()) / count - of[quickest]
    return Split("estimate", _sorted(parts), _longest(waited))


def _by_calls(found: Split, recording: Recording, costs: Sequence[CallCost]) -> Split:
    """Make an estimate from the waits that the cause uses, so that both agree."""
    waits: dict[str, float] = defaultdict(float)
    for one in costs:
        if one.cell.size == recording.size:
            waits[sized(one.cell.operation, one.cell.low_bytes)] += one.wait_s
    ranks = len(recording.ranks)
    parts = {
        label: [transfer_s + wait_s - waits[label] / ranks, waits[label] / ranks]
        for label, transfer_s, wait_s in found.by_operation
    }
    least_s = _LITTLE * sum(wait_s for _, wait_s in parts.values())
    late = tuple((rank, time_s) for rank, time_s in found.waited_for if time_s > least_s)
    return replace(found, by_operation=_sorted(parts), waited_for=late, by_calls=True)


def _sorted(parts: dict[str, list[float]]) -> tuple[tuple[str, float, float], ...]:
    order = sorted(parts.items(), key=lambda item: -sum(item[1]))
    return tuple((label, transfer, wait) for label, (transfer, wait) in order)


def _longest(waited: dict[int, float]) -> tuple[tuple[int, float], ...]:
    # Rounding errors are not waiting.
    least = 1e-3 * max(waited.values(), default=0.0)
    late = [(rank, time_s) for rank, time_s in waited.items() if time_s > least]
    return tuple(sorted(late, key=lambda item: -item[1]))
