"""Forecasts of tables from each of their cuts, and the constants that fit other sources best."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from hvprof.analysis.projection.growth import PUBLISHED, Prior
from hvprof.analysis.projection.points import Point
from hvprof.analysis.projection.projection import LEAST_SIZES, TOO_FAR, ProjectedSize, project

SHIPPED = Path(__file__).with_name("tables.json")
# Constants to choose from; the slack follows from the forecasts.
_LOSSES = (0.03, 0.04, 0.05, 0.06, 0.07, 0.08)
_WEIGHTS = (2.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_SLACK_STEP = 0.01
# Tables of one source resemble each other, and those to come are of other sources: the interval
# is the shortest that holds this share of each source. Over all sources it then holds 90 %.
_HELD = 0.8


@dataclass(frozen=True, slots=True)
class Table:
    """A measured training: the batch of a rank is kept.

    Attributes:
        name: of it.
        source: tables of the same source are never used to choose constants for it.
        ranks_per_node: of its cluster.
        points: ascending.
    """

    name: str
    source: str
    ranks_per_node: int
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """A size of a table, forecast from sizes up to `largest`."""

    table: str
    source: str
    largest: int
    measured: float
    size: ProjectedSize

    @property
    def inside(self) -> bool:
        return self.size.low <= self.measured <= self.size.high

    @property
    def error(self) -> float:
        """Error of the forecast, as a share of the measurement."""
        return self.size.throughput / self.measured - 1

    @property
    def times(self) -> float:
        """Ranks over those of the largest size used."""
        return self.size.ranks / self.largest


def read_tables(path: Path) -> list[Table]:
    """Read a file as tables.json: a table's source is its name up to the first underscore.

    Raises:
        BenchmarkError: it cannot be read, or is not such a file.
    """
    try:
        tables: dict[str, dict[str, Any]] = json.loads(path.read_text())["tables"]
        return [
            Table(
                name=name,
                source=name.partition("_")[0],
                ranks_per_node=int(table["ranks_per_node"]),
                points=tuple(
                    Point(int(ranks), float(throughput))
                    for ranks, throughput in sorted(
                        zip(table["ranks"], table["throughput"], strict=True)
                    )
                ),
            )
            for name, table in tables.items()
        ]
    except OSError as error:
        raise harness.BenchmarkError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise harness.BenchmarkError(
            f"{path} is not a file of tables such as {SHIPPED.name}: {error!r}"
        ) from None


def forecasts(tables: Iterable[Table], prior: Prior = PUBLISHED) -> list[Forecast]:
    """All sizes up to 16 times the largest used, from every cut of three sizes or more."""
    found = []
    for table in tables:
        for cut in range(LEAST_SIZES, len(table.points)):
            known, largest = table.points[:cut], table.points[cut - 1].ranks
            for point in table.points[cut:]:
                if point.ranks <= TOO_FAR * largest:
                    last = project(
                        known, to=point.ranks, ranks_per_node=table.ranks_per_node, prior=prior
                    ).projection[-1]
                    found.append(
                        Forecast(table.name, table.source, largest, point.throughput, last)
                    )
    return found


def choose(tables: Sequence[Table]) -> Prior:
    """The constants that forecast these tables best, all sources counting the same."""
    tried = [
        dataclasses.replace(PUBLISHED, loss=loss, weight=weight)
        for loss, weight in itertools.product(_LOSSES, _WEIGHTS)
    ]
    best = min(tried, key=lambda prior: _median_error(forecasts(tables, prior)))
    needed = _by_source(forecasts(tables, dataclasses.replace(best, slack=0.0)))
    slack = max(_quantile([_slack(one) for one in part]) for part in needed)
    return dataclasses.replace(best, slack=math.ceil(slack / _SLACK_STEP) * _SLACK_STEP)


def held_out(tables: Iterable[Table], known: Sequence[Table]) -> list[tuple[Prior, list[Forecast]]]:
    """Forecasts of each source, with constants chosen from the other sources of `known`."""
    by_source: dict[str, list[Table]] = {}
    for table in tables:
        by_source.setdefault(table.source, []).append(table)
    found = []
    for source, of_source in by_source.items():
        prior = choose([table for table in known if table.source != source])
        found.append((prior, forecasts(of_source, prior)))
    return found


def _slack(forecast: Forecast) -> float:
    """The slack that holds a measurement, if the interval was made with none."""
    size = forecast.size
    missing = size.throughput / forecast.measured - size.throughput / size.low
    return max(0.0, missing / math.log2(forecast.times))


def _quantile(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(_HELD * len(values)) - 1]


def _median_error(found: Sequence[Forecast]) -> float:
    return statistics.fmean(
        statistics.median(abs(one.error) for one in part) for part in _by_source(found)
    )


def _by_source(found: Sequence[Forecast]) -> list[list[Forecast]]:
    by_source: dict[str, list[Forecast]] = {}
    for one in found:
        by_source.setdefault(one.source, []).append(one)
    return list(by_source.values())
