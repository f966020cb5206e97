"""Does `hvprof project` foretell published scaling tables from their smaller sizes?

Each table of the files is forecast from every cut of at least three sizes, up to 16 times the
ranks. The model's constants are chosen from the tables in tables.json that are of other sources,
so that no table is forecast with constants that have seen its source. A file holds "tables": by
name, which begins with the source and an underscore, `ranks_per_node`, `ranks` and `throughput`.
Nothing is timed.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.scaling_forecast.forecasts import (
    SHIPPED,
    Forecast,
    choose,
    held_out,
    read_tables,
)
from hvprof.analysis.projection.growth import PUBLISHED

# Times the largest size used: above, and up to.
_BANDS = (
    ("all", 0, 16),
    ("next doubling", 0, 2),
    ("up to 4 times", 2, 4),
    ("up to 16 times", 4, 16),
)
_WIDTH = 110
_COLUMNS = (
    "forecasts",
    "number",
    "inside",
    "too high",
    "median error",
    "naive",
    "interval",
    "above naive",
)


def main(arguments: Sequence[str]) -> int:
    """Forecast the tables, print a line for each table and each distance, write the result."""
    parser = harness.parser("scaling_forecast", __doc__, "tables.json --json F")
    parser.add_argument(
        "files", metavar="FILE", type=Path, nargs="*", help="tables (default: the published ones)"
    )
    options = parser.parse_args(arguments)
    shipped = read_tables(SHIPPED)
    tables = [table for path in options.files or [SHIPPED] for table in read_tables(path)]
    parts = held_out(tables, shipped)
    found = [one for _, part in parts for one in part]
    if not found:
        raise harness.BenchmarkError("no table has 4 sizes: three are fitted, the next is forecast")
    names = dict.fromkeys(one.table for one in found)
    by_table = {name: [one for one in found if one.table == name] for name in names}
    by_band = {
        name: [one for one in found if low < one.times <= high] for name, low, high in _BANDS
    }
    sections = [
        {name: _summary(part) for name, part in group.items() if part}
        for group in (by_table, by_band)
    ]
    _print(sections)
    constants = {part[0].source: dataclasses.asdict(prior) for prior, part in parts if part}
    if options.json:
        harness.write_result(
            options.json,
            {
                "tables": sections[0],
                "distances": sections[1],
                "constants": {
                    "shipped": dataclasses.asdict(PUBLISHED),
                    "chosen_from_all": dataclasses.asdict(choose(shipped)),
                    "with_the_source_left_out": constants,
                },
                "forecasts": [*map(_row, found)],
            },
        )
    return 0


def _summary(part: Sequence[Forecast]) -> dict[str, Any]:
    sizes = [(one.size, one.measured) for one in part]
    return {
        "number": len(part),
        "inside": sum(one.inside for one in part) / len(part),
        "too_high": sum(one.error > 0 for one in part),
        "median_error": statistics.median(abs(one.error) for one in part),
        "naive_median_error": statistics.median(
            abs(size.naive / measured - 1) for size, measured in sizes
        ),
        # The mean interval, as shares of the forecast.
        "interval": [
            statistics.fmean(size.low / size.throughput - 1 for size, _ in sizes),
            statistics.fmean(size.high / size.throughput - 1 for size, _ in sizes),
        ],
        "above_naive": sum(size.throughput > size.naive * (1 + 1e-9) for size, _ in sizes),
    }


def _row(one: Forecast) -> dict[str, Any]:
    return {"table": one.table, "largest": one.largest, "measured": one.measured} | {
        name: getattr(one.size, name) for name in ("ranks", "throughput", "low", "high", "naive")
    }


def _print(sections: Sequence[dict[str, dict[str, Any]]]) -> None:
    def rows() -> Iterator[tuple[str, ...]]:
        for number, section in enumerate(sections):
            if number:
                yield ()
            for name, values in section.items():
                low, high = (100 * share for share in values["interval"])
                yield (
                    name,
                    f"{values['number']}",
                    f"{100 * values['inside']:.1f} %",
                    f"{values['too_high']}",
                    f"{100 * values['median_error']:.1f} %",
                    f"{100 * values['naive_median_error']:.1f} %",
                    f"{low:+.0f} to {high:+.0f} %",
                    f"{values['above_naive']}",
                )

    console = harness.print_table(
        "Forecasts, constants chosen from other sources", _COLUMNS, rows(), width=_WIDTH
    )
    console.print(
        "Inside: the measurement lies in the 90 % interval. Naive: error if the efficiency of the "
        "largest size used were kept.",
        soft_wrap=True,
    )


if __name__ == "__main__":
    harness.run(main, "scaling_forecast")
