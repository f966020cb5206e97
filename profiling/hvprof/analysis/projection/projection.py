"""The projection of a training to sizes that were not measured."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_ext.errors import UsageError
from hvd_ext.units import counted, plural
from hvprof.analysis.comparison.bootstrap import BETWEEN_RUNS
from hvprof.analysis.projection.amdahl import karp_flatt
from hvprof.analysis.projection.growth import PUBLISHED, Growth, Prior, fit_growth
from hvprof.analysis.projection.jump import Jump
from hvprof.analysis.projection.points import Point, sizes_of

LEAST_SIZES = 3
# Times the largest measured size: where a projection is far, and where it is refused.
FAR, TOO_FAR = 4, 16
CONFIDENCE = 0.9
# Two runs (the largest measured one, and one of the projected size) differ by this much by chance.
_BY_CHANCE = math.exp(
    statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt(2) * BETWEEN_RUNS
)


@dataclass(frozen=True, slots=True)
class ProjectedSize:
    """A size: its throughput with the interval, and that of the naive forecast.

    Attributes:
        ranks: ranks of the job.
        throughput, low, high: the forecast and its interval, in the unit of the points.
        naive: the same if the efficiency of the largest measured size were kept.
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
    """A size that was measured: the mean throughput of its runs, and its efficiency.

    Attributes:
        efficiency: efficiency relative to the smallest size.
        serial: the Karp-Flatt share; None for the smallest size.
    """

    ranks: int
    runs: int
    throughput: float
    efficiency: float
    serial: float | None


@dataclass(frozen=True, slots=True)
class NextSize:
    """The size to measure next, and half the width of its interval in percent."""

    ranks: int
    half_percent: float


@dataclass(frozen=True, slots=True)
class Projection:
    """Sizes that were measured, and sizes that were not.

    Attributes:
        strong: the batch of all ranks is kept, not that of each.
        ranks_per_node: the number that was given.
        measured: measured sizes, ascending.
        doubling: time that a doubling of the largest size costs a rank, as a share of it.
        jump: between two measured sizes; None if there is none.
        beyond_a_node: how many of the measured sizes need more than one node.
        projection: larger sizes, ascending.
        next_size: size to measure next.
        confidence: confidence of the intervals.
    """

    strong: bool
    ranks_per_node: int
    measured: tuple[MeasuredSize, ...]
    doubling: float
    jump: Jump | None
    beyond_a_node: int
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
    prior: Prior = PUBLISHED,
) -> Projection:
    """Project measured throughputs to larger sizes.

    Args:
        points: three sizes at least, each measured once or more.
        to: the largest size; None: 4 times the largest that was measured.
        ranks_per_node: where nodes differ from ranks.
        strong: the batch of all ranks was kept, not that of each.
        far: allow more than 16 times the largest size.
        prior: prior knowledge of trainings in general.

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
    if most <= last:
        raise UsageError(f"{most} ranks: {last} were measured; give --to more than that")
    measured = _measured(points, sizes)
    growth = fit_growth(
        sizes, [one.ranks / one.throughput for one in measured], strong=strong, prior=prior
    )
    following = _projected(2 * last, growth, prior)
    return Projection(
        strong=strong,
        ranks_per_node=ranks_per_node,
        measured=measured,
        doubling=growth.loss,
        jump=growth.jump,
        beyond_a_node=sum(ranks_per_node == 1 or size > ranks_per_node for size in sizes),
        projection=tuple(_projected(ranks, growth, prior) for ranks in _sizes_to(last, most)),
        next_size=NextSize(2 * last, 50 * (following.high - following.low) / following.throughput),
    )


def _projected(ranks: int, growth: Growth, prior: Prior) -> ProjectedSize:
    """The forecast, with an interval that extends further down than up.

    A network, a file system or a parameter server may reach its limit at any doubling, whatever was
    measured before. Upwards, a doubling may cost less than expected by the usual scatter, and only
    by chance is a size more efficient than the largest measured one.
    """
    time_s = growth.at(ranks)
    doublings = max(0.0, math.log2(ranks / growth.largest))
    less = dataclasses.replace(growth, loss=max(0.0, growth.loss - prior.loss))
    return ProjectedSize(
        ranks=ranks,
        throughput=ranks / time_s,
        low=ranks / time_s / (_BY_CHANCE + prior.slack * doublings),
        high=ranks / less.at(ranks) * _BY_CHANCE,
        naive=ranks / growth.time_s,
        far=ranks > FAR * growth.largest,
    )


def _measured(points: Sequence[Point], sizes: Sequence[int]) -> tuple[MeasuredSize, ...]:
    found: list[MeasuredSize] = []
    for ranks in sizes:
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
                efficiency=speedup / factor,
                serial=karp_flatt(speedup, factor) if first else None,
            )
        )
    return tuple(found)


def _sizes_to(last: int, most: int) -> list[int]:
    """Doublings of the largest measured size, and the one that was asked for."""
    doublings = range(1, math.ceil(math.log2(most / last)) + 1)
    return sorted({min(last * 2**power, most) for power in doublings})


def _doubled(last: int, least: float) -> int:
    """The first doubling of the largest measured size that reaches this size."""
    return last * 2 ** math.ceil(math.log2(least / last))
