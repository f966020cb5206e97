"""Waiting and transfer, from the rank that arrived last at each collective.

This needs no messages. The k-th collective on a communicator is the same one on all of its ranks,
and a trace has the time at which each of them entered it, on one clock. Until the last one arrived,
the others waited:

    wait of a rank = min(time of its call, last arrival - its own arrival)

In a broadcast or scatter, ranks wait only for the root. If hvd_ext measured a wait itself, that is
used, and the last rank is named.

The same is computed for regions of kind "communication", which all ranks enter equally often:
Horovod starts an exchange only when every rank has requested it, so a late rank shows not in the
exchange, but in the time for which the others are blocked before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvprof.analysis.waiting.collectives import COLLECTIVES, FROM_ROOT
from hvprof.format.bins import BINS, bin_edges
from hvprof.format.key import REGION, SOURCES, decode_all
from hvprof.format.trace import RankTrace, load_trace
from hvprof.model import Cell, Recording

_COLUMNS = np.dtype(
    [
        ("group", "u8"),
        ("begin", "i8"),
        ("time", "i8"),
        ("wait", "i8"),
        ("sequence", "u4"),
        ("rank", "i4"),
        ("size", "i4"),
        ("operation", "i2"),
        ("algorithm", "i2"),
        ("bin", "i2"),
        ("is_root", "?"),
    ]
)
_Columns = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class OperationWait:
    """The covered calls of one operation, algorithm and size bin, summed over all ranks.

    Attributes:
        size: number of ranks of the communicator.
        low_bytes, high_bytes: the bin's smallest and largest message.
        time_s: time of the calls; for wait_s of it the last rank had not come.
    """

    operation: str
    algorithm: str
    size: int
    low_bytes: int
    high_bytes: int
    calls: int
    time_s: float
    wait_s: float

    @property
    def transfer_s(self) -> float:
        """Return the rest, after all ranks have arrived."""
        return self.time_s - self.wait_s


@dataclass(frozen=True, slots=True)
class PeerWait:
    """How long `rank` waited for `waited_for`, which was the last rank in `calls` calls."""

    rank: int
    waited_for: int
    operation: str
    calls: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting and transfer of the calls that the trace covers.

    Attributes:
        operations: the one with the longest time first.
        peers: the longest wait first.
        calls: recorded collective calls, on all ranks together.
        covered_calls: those that are in the traces of all their ranks.
        regions, region_peers: the same for regions of kind "communication", by their names. Waits
            in collectives within them are in both: do not add them up.
    """

    operations: tuple[OperationWait, ...]
    peers: tuple[PeerWait, ...]
    calls: int
    covered_calls: int
    regions: tuple[OperationWait, ...] = ()
    region_peers: tuple[PeerWait, ...] = ()

    @property
    def covered_percent(self) -> float:
        """Return the share of the collective calls that the figures cover."""
        # A damaged recording may count fewer calls than its trace has.
        return min(100.0, 100 * self.covered_calls / self.calls) if self.calls else 0.0


def waiting(recording: Recording) -> Waiting | None:
    """Separate waiting from transfer in the collectives of data traffic.

    Args:
        recording: recording of one job.

    Returns:
        The waiting of each operation and rank, or None without a trace.

    Raises:
        UsageError: as `load_trace` does.
    """
    trace = load_trace(recording)
    if trace is None:
        return None
    names: dict[str, int] = {}
    collectives = [_columns(rank, names) for rank in trace.ranks]
    operations, peers, covered_calls = _told_apart(np.concatenate(collectives), names)
    entered = [_region_columns(rank, names, recording.size) for rank in trace.ranks]
    regions, region_peers, _ = _told_apart(np.concatenate(entered), names)
    return Waiting(
        operations=operations,
        peers=peers,
        calls=sum(
            cell.calls for rank in recording.ranks for cell in rank.cells if _is_collective(cell)
        ),
        covered_calls=covered_calls,
        regions=regions,
        region_peers=region_peers,
    )


def _told_apart(
    rows: _Columns, names: dict[str, int]
) -> tuple[tuple[OperationWait, ...], tuple[PeerWait, ...], int]:
    """Return waiting by operation and by late rank, and the number of calls."""
    # Within a collective, the last rank comes last in the order.
    rows = rows[np.lexsort((rows["begin"], rows["sequence"], rows["group"]))]
    rows, first, last = _complete(rows)
    waits, waited_for = _waits(rows, first, last, names)
    shown = tuple(names)
    return (
        _by_operation(rows, waits, shown),
        _by_peer(rows, waits, waited_for, shown),
        len(rows),
    )


def _is_collective(cell: Cell) -> bool:
    return cell.traffic == "data" and cell.operation in COLLECTIVES and cell.size > 1


def _numbers(trace: RankTrace, names: dict[str, int]) -> NDArray[np.int64]:
    """Return for each name of a rank its number in `names`, which all ranks share."""
    return np.array([names.setdefault(name, len(names)) for name in trace.tables.names])


def _columns(trace: RankTrace, names: dict[str, int]) -> _Columns:
    """Return the blocking collectives of a rank."""
    events, tables = trace.events, trace.tables
    collective = np.array([name in COLLECTIVES for name in tables.names])
    sizes = np.array([one.size for one in tables.communicators])
    ids = np.array([int(one.id or "0", 16) for one in tables.communicators], np.uint64)
    own_ranks = np.array([one.rank for one in tables.communicators])
    keys = decode_all(events["key"])
    communicator, own = keys["communicator"], keys["source"] == SOURCES.index("hvd_ext")
    size_bin, operation = keys["size_bin"], keys["operation"]
    # MPI's calls on communicators without an id cannot be distinguished. Ids are odd numbers.
    known = own | (ids[communicator] > 0)
    kept = (events["sequence"] > 0) & (keys["traffic"] == 0) & collective[operation]
    kept &= known & (sizes[communicator] > 1) & (size_bin < BINS)
    columns = _common_columns(trace, kept, names)
    of_own = (2 * sizes).astype(np.uint64)[communicator]
    columns["group"] = np.where(own, of_own, ids[communicator])[kept]
    columns["wait"] = events["wait_ns"][kept]
    columns["bin"] = size_bin[kept]
    columns["size"] = sizes[communicator][kept]
    columns["is_root"] = (events["peer"] == own_ranks[communicator])[kept]
    return columns


def _region_columns(trace: RankTrace, names: dict[str, int], size: int) -> _Columns:
    """Return a rank's regions of communication, as collectives of all `size` ranks."""
    events, keys = trace.events, decode_all(trace.events["key"])
    kind = np.array([name == "communication" for name in trace.tables.names])
    kept = (events["sequence"] > 0) & (keys["traffic"] == REGION) & kind[keys["algorithm"]]
    columns = _common_columns(trace, kept, names)
    columns["group"] = columns["operation"]
    columns["size"] = size
    return columns


def _common_columns(trace: RankTrace, kept: NDArray[np.bool_], names: dict[str, int]) -> _Columns:
    events, numbers = trace.events, _numbers(trace, names)
    keys = decode_all(events["key"])
    columns = np.zeros(np.count_nonzero(kept), _COLUMNS)
    columns["sequence"] = events["sequence"][kept]
    columns["begin"] = events["begin_ns"][kept]
    columns["time"] = np.maximum(0, events["end_ns"] - events["begin_ns"])[kept]
    columns["rank"] = trace.rank
    columns["operation"] = numbers[keys["operation"]][kept]
    columns["algorithm"] = numbers[keys["algorithm"]][kept]
    return columns


def _complete(
    rows: _Columns,
) -> tuple[_Columns, NDArray[np.int64], NDArray[np.int64]]:
    """Return the collectives that have every rank's call, and where each begins and ends.

    Returns:
        rows; and for each row the index of the first and the last row of its collective.
    """
    if not len(rows):
        return rows, np.zeros(0, np.int64), np.zeros(0, np.int64)
    new = np.ones(len(rows), bool)
    new[1:] = (rows["group"][1:] != rows["group"][:-1]) | (
        rows["sequence"][1:] != rows["sequence"][:-1]
    )
    starts = np.flatnonzero(new)
    counts = np.diff(np.append(starts, len(rows)))
    operation = rows["operation"]
    whole = counts == rows["size"][starts]
    whole &= np.minimum.reduceat(operation, starts) == np.maximum.reduceat(operation, starts)
    rows, counts = rows[np.repeat(whole, counts)], counts[whole]
    ends = np.cumsum(counts)
    return rows, np.repeat(ends - counts, counts), np.repeat(ends - 1, counts)


def _waits(
    rows: _Columns, first: NDArray[np.int64], last: NDArray[np.int64], names: dict[str, int]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return how long each call waited, in ns, and for which rank."""
    awaited = last.copy()
    from_root = np.isin(rows["operation"], [names[n] for n in FROM_ROOT if n in names])
    roots = np.flatnonzero(rows["is_root"] & from_root)
    root_of = np.full(len(rows), -1)
    root_of[first[roots]] = roots
    rooted = from_root & (root_of[first] >= 0) if len(rows) else from_root
    awaited[rooted] = root_of[first][rooted]
    late = rows["begin"][awaited] - rows["begin"]
    waits = np.clip(late, 0, rows["time"])
    measured = rows["wait"] > 0
    waits[measured] = np.minimum(rows["wait"], rows["time"])[measured]
    return waits, rows["rank"][awaited]


def _by_operation(
    rows: _Columns, waits: NDArray[np.int64], names: tuple[str, ...]
) -> tuple[OperationWait, ...]:
    columns = ("operation", "algorithm", "size", "bin")
    firsts, calls, (times, waited) = _sums([rows[name] for name in columns], [rows["time"], waits])
    found = []
    for row, count, time_ns, wait_ns in zip(firsts, calls, times, waited, strict=True):
        low, high = bin_edges(rows["bin"][row].item())
        found.append(
            OperationWait(
                operation=names[rows["operation"][row]],
                algorithm=names[rows["algorithm"][row]],
                size=rows["size"][row].item(),
                low_bytes=low,
                high_bytes=high,
                calls=count,
                time_s=time_ns / 1e9,
                wait_s=wait_ns / 1e9,
            )
        )
    return tuple(sorted(found, key=lambda one: -one.time_s))


def _by_peer(
    rows: _Columns,
    waits: NDArray[np.int64],
    waited_for: NDArray[np.int32],
    names: tuple[str, ...],
) -> tuple[PeerWait, ...]:
    waited = (waits > 0) & (waited_for != rows["rank"])
    ranks, operations = rows["rank"][waited], rows["operation"][waited]
    peers = waited_for[waited]
    firsts, calls, (sums,) = _sums([ranks, peers, operations], [waits[waited]])
    found = [
        PeerWait(rank, peer, names[operation], count, wait_ns / 1e9)
        for rank, peer, operation, count, wait_ns in zip(
            ranks[firsts].tolist(),
            peers[firsts].tolist(),
            operations[firsts].tolist(),
            calls,
            sums,
            strict=True,
        )
    ]
    return tuple(sorted(found, key=lambda one: -one.wait_s))


def _sums(
    keys: list[NDArray[Any]], values: list[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], list[int], list[list[float]]]:
    """Group by the keys (not negative): a row of each group, its rows, and sums of its values."""
    joint = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        joint = joint * (int(key.max(initial=0)) + 1) + key
    _, firsts, which, calls = np.unique(
        joint, return_index=True, return_inverse=True, return_counts=True
    )
    sums = [np.bincount(which, weights=value, minlength=len(firsts)).tolist() for value in values]
    return firsts, calls.tolist(), sums
