"""The table of forecasts of published scaling tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.figures.markdown import table


def scaling_forecast(results: Mapping[str, Any]) -> str:
    result = results["scaling_forecast"]
    rows = [
        (
            name,
            f"{values['number']}",
            f"{100 * values['inside']:.0f} %",
            f"{100 * values['median_error']:.1f} %",
            f"{100 * values['naive_median_error']:.1f} %",
            " to ".join(f"{100 * share:+.0f}" for share in values["interval"]) + " %",
        )
        for name, values in result["distances"].items()
    ]
    columns = ("distance", "forecasts", "inside", "median error", "naive", "mean interval")
    return f"{table(columns, rows)}\n\n`{result['command']}`"
