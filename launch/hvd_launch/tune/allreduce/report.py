"""Results of `tune allreduce`, for a person and for a script."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hvd_ext.units import format_bytes, format_seconds
from hvd_launch.backends.tuning import DEFAULT
from hvd_launch.tune.allreduce.choice import compare
from hvd_launch.tune.allreduce.result import Result, Verdict


def print_result(result: Result, folder: Path, console: Console) -> None:
    _print_times(result, console)
    for name, reason in result.dropped.items():
        console.print(f"{name} was skipped: it {reason}", markup=False, highlight=False)
    size = result.facts["size"]
    if result.native is None:
        console.print("No setting of the MPI library promised a gain: nothing was written.")
    else:
        _print_verdict(result.native, "the library as it is", console)
        if result.native.overall.gained:
            console.print(
                f"Wrote {folder / 'settings.sh'}. Before a job of {size} ranks:\n"
                f"    . {folder / 'settings.sh'}",
                markup=False,
                soft_wrap=True,
            )
        else:
            console.print("No significant gain: nothing was written.")
    if result.table is not None:
        _print_verdict(result.table, "MPI_Allreduce with the same settings", console)
        if result.table.overall.gained:
            path = folder / "table.json"
            console.print(
                f"Wrote {path}: hvd_ext uses it with\n    export HVD_EXT_TABLE={path}",
                markup=False,
                soft_wrap=True,
            )
        else:
            console.print("No significant gain of hvd_ext's algorithms: no table was written.")


def as_json(result: Result) -> dict[str, Any]:
    """The result in JSON's types; times are medians over the rounds, in us."""
    facts = {name: value for name, value in result.facts.items() if name != "selection"}
    return {
        "facts": facts,
        "median_us": _medians(result),
        "native": _verdict_json(result.native),
        "table": _verdict_json(result.table),
        "dropped": result.dropped,
    }


def dump(result: Result) -> str:
    return json.dumps(as_json(result), indent=2) + "\n"


def _verdict_json(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "gained": verdict.overall.gained,
        "ratio": asdict(verdict.overall),
        "ratio_by_message_bytes": {n: asdict(found) for n, found in verdict.by_size.items()},
        "choices": [list(choice) for choice in verdict.proposal.choices],
        "settings": {setting.name: setting.value for setting in verdict.settings},
        "files": [str(path) for path in verdict.files] if verdict.overall.gained else [],
    }


def _medians(result: Result) -> dict[str, dict[int, float]]:
    return {
        name: {size: statistics.median(rounds.values()) for size, rounds in by_size.items()}
        for name, by_size in result.times.items()
    }


def _print_times(result: Result, console: Console) -> None:
    medians = _medians(result)
    nodes = len(result.facts["ranks_per_node"])
    table = Table(
        title=f"One allreduce, median of the rounds: {result.facts['library']}, "
        f"{result.facts['size']} ranks on {nodes} {'nodes' if nodes > 1 else 'node'}",
        title_justify="left",
    )
    for name in ("message", "as it is", "fastest", "takes", "times as fast (95 % interval)"):
        table.add_column(name, justify="left" if name == "fastest" else "right")
    for size, default_us in sorted(medians[DEFAULT].items()):
        found = {name: by_size[size] for name, by_size in medians.items() if size in by_size}
        fastest = min(found, key=found.__getitem__)
        gained = None
        if fastest != DEFAULT:
            gained = compare(result.times, DEFAULT, fastest, size)
        times = (format_seconds(default_us / 1e6), format_seconds(found[fastest] / 1e6))
        table.add_row(
            format_bytes(size), times[0], fastest, times[1], "" if gained is None else str(gained)
        )
    console.print(table)


def _print_verdict(verdict: Verdict, against: str, console: Console) -> None:
    table = Table(title=f"Interleaved runs with {against}", title_justify="left")
    for name in ("message", "takes", "times as fast (95 % interval)"):
        table.add_column(name, justify="left" if name == "takes" else "right")
    for size, found in verdict.by_size.items():
        takes = next(name for least, name in reversed(verdict.proposal.choices) if least <= size)
        table.add_row(format_bytes(size), takes, str(found))
    table.add_section()
    table.add_row("all", "", str(verdict.overall))
    console.print(table)
