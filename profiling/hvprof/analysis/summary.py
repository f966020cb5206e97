"""Groups the cells of all ranks into the rows that people read."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_ext.arithmetic.metrics import algbw_gb_s, busbw_gb_s
from hvd_ext.units import KIB, MIB, format_bytes
from hvprof.analysis.waiting.collectives import COLLECTIVES
from hvprof.format.bins import bucket_edges_s
from hvprof.model import Cell, Recording, Region

# A run is cut into this many blocks, for comparisons that have one run a side.
BLOCKS = 20
_BENCHMARKED_SIZES = 4

# Label and largest message. KB and MB are binary here (1 KB = 1024 bytes), as in the
# table of the original hvprof, and as Horovod counts its fusion threshold; a fusion
# buffer filled to its 64 or 128 MiB lies in the row that ends there.
SIZE_ROWS = (
    ("-", 0),  # calls that name no bytes: waits, barriers
    ("<1 KB", KIB - 1),
    ("1-128 KB", 128 * KIB),
    ("128 KB-16 MB", 16 * MIB),
    ("16-32 MB", 32 * MIB),
    ("32-64 MB", 64 * MIB),
    ("64-128 MB", 128 * MIB),
    (">128 MB", 2**64),
)


@dataclass(frozen=True, slots=True)
class Row:
    """The calls of one operation, algorithm and range of message sizes on all ranks.

    Attributes:
        operation, algorithm, size: see Cell.
        message_size: label of the range, one of SIZE_ROWS, or a power of two.
        calls: number of calls on all ranks together.
        calls_min, calls_max: number of calls of the ranks with the fewest and the most.
        message_bytes: payload on all ranks together.
        time_s: summed over a rank's calls, as a mean over the ranks.
        time_max_s: time of the rank with the most.
        wait_s: the part of time_s spent in waiting for other ranks, None if unknown.
        avg_s, min_s, max_s: times of a call, over all ranks.
        algbw_gb_s, busbw_gb_s: decimal GB/s; None where the time is not that of the
            exchange (non-blocking calls) or nothing is moved.
        p50_s, p99_s: quantiles of a call's time, over all ranks; None if not recorded.
        blocks_s: time_s in 20 consecutive parts of equally many calls; empty if not recorded.
    """

    operation: str
    algorithm: str
    size: int
    message_size: str
    calls: int
    calls_min: int
    calls_max: int
    message_bytes: int
    time_s: float
    time_max_s: float
    wait_s: float | None
    avg_s: float
    min_s: float
    max_s: float
    algbw_gb_s: float | None
    busbw_gb_s: float | None
    p50_s: float | None
    p99_s: float | None
    blocks_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Exposed:
    """How long a rank was blocked on communication: its regions of kind "communication".

    Attributes:
        steps: how often a rank entered the region that was entered most.
        time_s: time of a rank, as a mean over the ranks.
        time_max_s: time of the rank with the most.
    """

    steps: int
    time_s: float
    time_max_s: float


def size_row(message_bytes: int) -> int:
    """Index into SIZE_ROWS of a message."""
    return next(index for index, (_, most) in enumerate(SIZE_ROWS) if message_bytes <= most)


def sized(operation: str, message_bytes: int) -> str:
    """An operation with its range of sizes, such as "allreduce <1 KB"; without one, if none."""
    index = size_row(message_bytes)
    return f"{operation} {SIZE_ROWS[index][0]}" if index else operation


def rows(recording: Recording, traffic: str) -> list[Row]:
    """The rows of one kind of traffic, the operation that took longest first.

    Args:
        recording: recording of one job.
        traffic: "data", "control" or "transport".
    """
    groups: dict[tuple[str, str, int, int], dict[int, list[Cell]]] = defaultdict(
        lambda: defaultdict(list)
    )
    time_s: dict[str, float] = defaultdict(float)
    for rank in recording.ranks:
        for cell in rank.cells:
            if cell.traffic == traffic:
                key = (cell.operation, cell.algorithm, cell.size, size_row(cell.low_bytes))
                groups[key][rank.rank].append(cell)
                time_s[cell.operation] += cell.time_s
    order = sorted(groups, key=lambda key: (-time_s[key[0]], *key))
    return [_row(key[:3], SIZE_ROWS[key[3]][0], groups[key], len(recording.ranks)) for key in order]


def of_horovod(control: Iterable[Row]) -> list[Row]:
    """The control traffic of Horovod: it agrees by collectives, and hvd_ext by messages."""
    return [row for row in control if row.operation in {*COLLECTIVES, "negotiate"}]


def power_rows(recording: Recording) -> list[Row]:
    """A row for each power of two, of the data operations that benchmark: by operation and size.

    Those are operations of which most calls have messages of exactly a power of two, of at
    least four sizes.
    """
    groups: dict[tuple[str, str, int, int], dict[int, list[Cell]]] = defaultdict(
        lambda: defaultdict(list)
    )
    calls: Counter[tuple[str, bool]] = Counter()
    for rank in recording.ranks:
        for cell in rank.cells:
            if cell.traffic == "data" and cell.high_bytes:
                exact = cell.low_bytes == cell.high_bytes
                calls[cell.operation, exact] += cell.calls
                if exact:
                    key = (cell.operation, cell.algorithm, cell.size, cell.low_bytes)
                    groups[key][rank.rank].append(cell)
    sizes: dict[str, set[int]] = defaultdict(set)
    for operation, _, _, message_bytes in groups:
        sizes[operation].add(message_bytes)
    return [
        _row(key[:3], format_bytes(key[3]), groups[key], len(recording.ranks))
        for key in sorted(groups)
        if len(sizes[key[0]]) >= _BENCHMARKED_SIZES and calls[key[0], True] > calls[key[0], False]
    ]


def exposed(recording: Recording) -> Exposed | None:
    """The exposed communication.

    Args:
        recording: recording of one job.

    Returns:
        Its time, or None where no rank has a region of kind "communication".
    """
    per_rank = [
        [region for region in rank.regions if region.kind == "communication"]
        for rank in recording.ranks
    ]
    if not any(per_rank):
        return None
    times = [sum(region.time_s for region in regions) for regions in per_rank]
    steps = max(region.calls for regions in per_rank for region in regions)
    return Exposed(steps=steps, time_s=sum(times) / len(times), time_max_s=max(times))


def quantile_s(cells: Iterable[Cell | Region], q: float) -> float | None:
    """The time that a share `q` of all calls did not exceed, within 7 %.

    Args:
        cells: cells of one rank or of many; their calls are taken together.
        q: 0.5 for the median.

    Returns:
        Seconds, or None where the cells have no histogram (an imported timeline).
    """
    calls: Counter[int] = Counter()
    shortest, longest = math.inf, 0.0
    for cell in cells:
        for bucket, count in cell.histogram:
            calls[bucket] += count
        shortest, longest = min(shortest, cell.min_s), max(longest, cell.max_s)
    wanted = q * sum(calls.values())
    for bucket in sorted(calls):
        wanted -= calls[bucket]
        if wanted <= 0:
            low, high = bucket_edges_s(bucket)
            return min(max((low + high) / 2, shortest), longest)
    return None


def _row(key: tuple[str, str, int], label: str, per_rank: dict[int, list[Cell]], ranks: int) -> Row:
    operation, algorithm, size = key
    cells = [cell for of_rank in per_rank.values() for cell in of_rank]
    calls_of = [sum(cell.calls for cell in of_rank) for of_rank in per_rank.values()]
    times = [sum(cell.time_s for cell in of_rank) for of_rank in per_rank.values()]
    waits = [cell.wait_s for cell in cells if cell.wait_s is not None]
    message_bytes = sum(cell.message_bytes for cell in cells)
    # The time of a non-blocking call is not the time of the exchange that it starts.
    moved = message_bytes > 0 and not operation.startswith("i")
    base = {"bcast": "broadcast"}.get(operation, operation.removesuffix("v"))
    base = base.removesuffix("_block")
    return Row(
        operation=operation,
        algorithm=algorithm,
        size=size,
        message_size=label,
        calls=sum(calls_of),
        calls_min=min(calls_of) if len(calls_of) == ranks else 0,
        calls_max=max(calls_of),
        message_bytes=message_bytes,
        time_s=sum(times) / ranks,
        time_max_s=max(times),
        wait_s=sum(waits) / ranks if waits else None,
        avg_s=sum(times) / sum(calls_of),
        min_s=min(cell.min_s for cell in cells),
        max_s=max(cell.max_s for cell in cells),
        algbw_gb_s=algbw_gb_s(message_bytes, sum(times)) if moved else None,
        busbw_gb_s=busbw_gb_s(base, message_bytes, sum(times), size) if moved else None,
        p50_s=quantile_s(cells, 0.5),
        p99_s=quantile_s(cells, 0.99),
        blocks_s=_blocks(cells, ranks),
    )


def _blocks(cells: list[Cell], ranks: int) -> tuple[float, ...]:
    """Time of a rank in BLOCKS consecutive parts of the run.

    Cells have blocks of different lengths: each is read as a curve of time against calls.
    Cells without blocks are spread evenly, which hides how they vary: where they are more
    than a tenth of the time, no blocks are made.
    """
    curves = []
    for cell in cells:
        done = np.minimum(np.arange(len(cell.blocks_s) + 1.0) * cell.block_calls / cell.calls, 1)
        if len(cell.blocks_s) >= 2 and done[-1] == 1:
            curves.append((done, np.concatenate([[0.0], np.cumsum(cell.blocks_s)])))
    total_s = sum(cell.time_s for cell in cells)
    known_s = sum(float(spent[-1]) for _, spent in curves)
    if not total_s or known_s < 0.9 * total_s:
        return ()
    grid = np.linspace(0, 1, BLOCKS + 1)
    time_s: NDArray[np.float64] = np.full(BLOCKS, (total_s - known_s) / BLOCKS)
    for done, spent in curves:
        time_s += np.diff(np.interp(grid, done, spent))
    # Blocks are clocked by themselves: their sum may miss the total by a rounding.
    return tuple(float(value) for value in np.maximum(time_s, 0) / ranks)
