"""The projection of a training to sizes that were not measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_ext.errors import UsageError
from hvd_ext.units import counted, plural
from hvprof.analysis.projection.amdahl import karp_flatt
from hvprof.analysis.projection.choice import CONFIDENCE, Scored, choose, forecast, score
from hvprof.analysis.projection.fit import Fit, Scale, fit
from hvprof.analysis.projection.jump import Jump, find_jump
from hvprof.analysis.projection.points import Point, sizes_of
from hvprof.analysis.projection.shapes import shapes

LEAST_SIZES = 3
# Times the largest measured size: where a projection is far, and where it is refused.
FAR, TOO_FAR = 4, 16


@dataclass(frozen=True, slots=True)
class ProjectedSize:
    """A size: its throughput with the interval, and that of the naive forecast.

    Attributes:
        ranks: of the job.
        throughput, low, high: as the points'.
        naive: if the efficiency of the largest measured size were kept.
        far: more than 4 times the largest measured size.
    """

    ranks: int
    throughput: float
    low: float
    high: float
    naive: float
    far: bool


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """A size that was measured: mean throughput of its runs, and what it is over the smallest's.

    Attributes:
        efficiency: over the smallest size.
        serial: the Karp-Flatt share; None for the smallest size.
    """

    ranks: int
    runs: int
    throughput: float
    fitted: float
    efficiency: float
    serial: float | None


@dataclass(frozen=True, slots=True)
class NextSize:
    """The size to measure next: of those in reach, its forecast is the least certain.

    Attributes:
        ranks: twice one of the measured sizes.
        half_percent: half of its interval's width.
    """

    ranks: int
    half_percent: float


@dataclass(frozen=True, slots=True)
class Projection:
    """Sizes that were measured, and sizes that were not.

    Attributes:
        strong: the batch of all ranks is kept, not that of each.
        ranks_per_node: as the shapes took it.
        measured: ascending.
        scored: the shapes and their errors; used: the names of those that are averaged.
        jump: between two measured sizes; None if there is none.
        projection: larger sizes, ascending.
        next_size: to measure.
        confidence: of the intervals.
    """

    strong: bool
    ranks_per_node: int
    measured: tuple[MeasuredSize, ...]
    scored: tuple[Scored, ...]
    used: tuple[str, ...]
    jump: Jump | None
    projection: tuple[ProjectedSize, ...]
    next_size: NextSize
    confidence: float = CONFIDENCE


def project(
    points: Sequence[Point],
    *,
    to: int | None = None,
    ranks_per_node: int = 1,
    strong: bool = False,
    far: bool = False,
) -> Projection:
    """Project measured throughputs to larger sizes.

    Args:
        points: three sizes at least, each measured once or more.
        to: the largest size; None: 4 times the largest that was measured.
        ranks_per_node: where nodes differ from ranks.
        strong: the batch of all ranks was kept, not that of each.
        far: allow more than 16 times the largest size.

    Raises:
        UsageError: too few sizes, or too far.
    """
    sizes = sizes_of(points)
    if len(sizes) < LEAST_SIZES:
        named = f" ({', '.join(map(str, sizes))} {plural(sizes[-1], 'rank')})" if sizes else ""
        raise UsageError(
            f"{counted(len(sizes), 'size')}{named}: a projection needs "
            f"{LEAST_SIZES} or more, such as 1, 2 and 4 ranks"
        )
    last = sizes[-1]
    most = to or FAR * last
    if most > TOO_FAR * last and not far:
        raise UsageError(
            f"{most} ranks are more than {TOO_FAR} times the {last} that were measured: measure "
            f"{_doubled(last, most / TOO_FAR)} or more, or add --far to accept wide intervals"
        )
    scale = Scale(strong)
    candidates = shapes(ranks_per_node, strong=strong)
    jump = find_jump(points, candidates, scale)
    scale = Scale(strong, jump.below if jump else None)
    scored = tuple(Scored(shape, score(points, shape, scale)) for shape in candidates)
    fits = [fit(points, shape, scale) for shape in choose(scored)]
    measured = _measured(points, fits)
    return Projection(
        strong=strong,
        ranks_per_node=ranks_per_node,
        measured=measured,
        scored=scored,
        used=tuple(one.shape.name for one in fits),
        jump=jump,
        projection=tuple(_projected(ranks, fits, measured[-1]) for ranks in _sizes_to(last, most)),
        next_size=_next(fits, sizes),
    )


def _projected(ranks: int, fits: Sequence[Fit], largest: MeasuredSize) -> ProjectedSize:
    found, scale = forecast(fits, ranks), fits[0].scale
    return ProjectedSize(
        ranks=ranks,
        throughput=scale.throughput(ranks, found.time_s),
        low=scale.throughput(ranks, found.time_s * found.factor),
        high=scale.throughput(ranks, found.time_s / found.factor),
        naive=largest.throughput * ranks / largest.ranks,
        far=ranks > FAR * largest.ranks,
    )


def _measured(points: Sequence[Point], fits: Sequence[Fit]) -> tuple[MeasuredSize, ...]:
    found: list[MeasuredSize] = []
    for ranks in sizes_of(points):
        runs = [point.throughput for point in points if point.ranks == ranks]
        throughput = statistics.geometric_mean(runs)
        first = found[0] if found else None
        factor = ranks / first.ranks if first else 1.0
        speedup = throughput / first.throughput if first else 1.0
        found.append(
            MeasuredSize(
                ranks=ranks,
                runs=len(runs),
                throughput=throughput,
                fitted=fits[0].scale.throughput(ranks, forecast(fits, ranks).time_s),
                efficiency=speedup / factor,
                serial=karp_flatt(speedup, factor) if first else None,
            )
        )
    return tuple(found)


def _sizes_to(last: int, most: int) -> list[int]:
    """Doublings of the largest measured size, and the one that was asked for."""
    doublings = range(1, max(1, math.ceil(math.log2(most / last)) + 1)) if most > last else ()
    return sorted({min(last * 2**power, most) for power in doublings} or {most})


def _next(fits: Sequence[Fit], sizes: Sequence[int]) -> NextSize:
    """The least certain size that was not measured, up to twice the largest."""
    tried = sorted({2 * size for size in sizes} - set(sizes))
    factors = {ranks: forecast(fits, ranks).factor for ranks in tried}
    widest = max(tried, key=lambda ranks: factors[ranks])
    return NextSize(widest, 100 * (factors[widest] - 1))


def _doubled(last: int, least: float) -> int:
    """The first doubling of the largest measured size that reaches so far."""
    return last * 2 ** math.ceil(math.log2(least / last))
