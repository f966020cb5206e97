"""Results of `tune allreduce`, for a person and for a script."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hvd_ext.units import counted, format_bytes
from hvd_launch.backends.tuning import DEFAULT
from hvd_launch.tune.allreduce.result import Result, Verdict
from hvd_launch.tune.common.gains import gain_cells

# Names of the library's own choice, in rules and in hvd_ext's table.
_LEFT_ALONE = (DEFAULT, "native")


def print_result(result: Result, folder: Path, console: Console) -> None:
    """Print the decisions; the times of all candidates are in the JSON."""
    for name, reason in result.dropped.items():
        console.print(f"{name} was skipped: it {reason}", markup=False, highlight=False)
    size = result.facts["size"]
    if result.native is None:
        console.print("No setting of the MPI library promised a gain: nothing was written.")
    else:
        _print_verdict(result.native, "the library's defaults", console)
        if result.native.overall.gained:
            console.print(
                f"Wrote {folder / 'settings.sh'}. Before a job of {counted(size, 'rank')}:\n"
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
    """Return the result in JSON's types; times are medians over the rounds, in us."""
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


def _print_verdict(verdict: Verdict, against: str, console: Console) -> None:
    """Return sizes for which another algorithm was chosen, and the gain over all of them."""
    table = Table(box=None, pad_edge=False)
    for name in ("message", "takes", "times as fast", "95 % interval"):
        table.add_column(name, justify="left" if name == "takes" else "right", no_wrap=True)
    left_alone = 0
    for size, found in verdict.by_size.items():
        takes = next(name for least, name in reversed(verdict.proposal.choices) if least <= size)
        if takes in _LEFT_ALONE:
            left_alone += 1
        else:
            table.add_row(format_bytes(size), takes, *gain_cells(found))
    table.add_row("all sizes", "", *gain_cells(verdict.overall))
    console.print(f"Chosen against {against}, by interleaved runs:", highlight=False)
    console.print(table)
    if left_alone:
        console.print(f"{left_alone} other sizes stay as they are.", highlight=False)
