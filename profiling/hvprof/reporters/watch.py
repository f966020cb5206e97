"""A running job between two readings, as a block of text and as data."""

from __future__ import annotations

import io
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rich.console import Console

from hvd_ext.units import GB, counted, format_seconds
from hvprof.analysis.conditions import Condition, conditions
from hvprof.analysis.waiting.slowness import reason
from hvprof.live import words
from hvprof.live.cause import Cause
from hvprof.live.rates import OperationRate, RankRate, Rates
from hvprof.model import Step
from hvprof.reporters.terminal.columns import Column, print_columns
from hvprof.reporters.text import bandwidth_text

COLUMNS = 80
_RANKS, _OPERATIONS = 8, 6
_RANK_COLUMNS = (
    *(Column("rank"), Column("host", 1, left=True), Column("steps", 2), Column("steps/s")),
    *(Column("trend", 3), Column("a step"), Column("exposed"), Column("in MPI")),
    *(Column("outside"), Column("in a call for", 4)),
)
_OPERATION_COLUMNS = (
    *(Column("operation", left=True), Column("calls/s"), Column("moved"), Column("of the time")),
    Column("bandwidth"),
)


@dataclass(frozen=True, slots=True)
class Watched:
    """A reading, and the one before it.

    Attributes:
        name: name of the job.
        unix_s: time of the reading.
        size: number of ranks of the job, started or not.
        rates: rates since the previous reading.
        slowest_s: how long the slowest rank has been the slowest.
        causes: why ranks are blocked, if they are.
    """

    name: str
    unix_s: float
    size: int
    rates: Rates
    slowest_s: float
    causes: Sequence[Cause]


def render(watched: Watched) -> str:
    """The reading as lines of at most 80 columns."""
    rates = watched.rates
    out = io.StringIO()
    console = Console(file=out, width=COLUMNS, color_system=None, force_terminal=False)
    clock = time.strftime("%H:%M:%S", time.localtime(watched.unix_s))
    ranks = counted(watched.size, "rank")
    if not rates.ranks:
        return f"{watched.name}: {clock}, {ranks}, none of them in two readings yet\n"
    interval_s = fmean(one.interval_s for one in rates.ranks)
    _wrapped(out, f"{watched.name}: {clock}, {ranks}, {interval_s:.1f} s since the last reading")
    _wrapped(out, _steps_line(rates))
    _wrapped(out, _slowest_line(rates, watched.slowest_s))
    for one in _conditions(rates):
        _wrapped(out, f"slowed: {one}")
    print("", file=out)
    shown = _shown(rates.ranks)
    print_columns(console, _RANK_COLUMNS, [_rank_row(one) for one in shown])
    if len(shown) < len(rates.ranks):
        others = [one for one in rates.ranks if one not in shown]
        mpi_s = fmean(one.mpi_s for one in others)
        print(
            f"{counted(len(others), 'more rank')}: {mpi_s:.2f} s in MPI on average; --json has all",
            file=out,
        )
    if rates.operations:
        print("", file=out)
        rows = [_operation_row(one) for one in rates.operations[:_OPERATIONS]]
        print_columns(console, _OPERATION_COLUMNS, rows)
    if watched.causes:
        print("", file=out)
        for cause in watched.causes:
            _wrapped(out, f"blocked: {cause.sentence}")
    return out.getvalue()


def as_json(watched: Watched) -> dict[str, Any]:
    """The reading for programs, all ranks included."""
    rates = watched.rates
    found = _conditions(rates)
    return {
        "unix_s": watched.unix_s,
        "size": watched.size,
        "step": asdict(rates.step) if rates.step else None,
        "slowest": rates.slowest,
        "slowest_s": watched.slowest_s,
        "slowest_why": str(reason(rates.slowest, rates.ranks, found) or ""),
        "conditions": [asdict(one) for one in found],
        "ranks": [asdict(one) for one in rates.ranks],
        "operations": [asdict(one) for one in rates.operations],
        "causes": [asdict(cause) for cause in watched.causes],
    }


def _conditions(rates: Rates) -> list[Condition]:
    if not rates.ranks:
        return []
    interval_s = fmean(one.interval_s for one in rates.ranks)
    return conditions(rates.ranks, rates.flows, interval_s)


def _wrapped(out: io.StringIO, text: str) -> None:
    print(textwrap.fill(text, COLUMNS, subsequent_indent="  "), file=out)


def _steps_line(rates: Rates) -> str:
    if rates.step:
        return f"a step: {_split(rates.step)}"
    marked = [one for one in rates.ranks if one.steps_s is not None]
    if not marked:
        return "steps: none are marked"
    age_s = min(one.since_step_s for one in marked)
    return f"steps: none has ended since the last reading, the last one {words.seconds(age_s)} ago"


def _split(step: Step) -> str:
    parts = (
        (step.compute_s, "compute"),
        (step.exposed_s, "exposed communication"),
        (step.io_s, "I/O"),
        (step.other_s, "other"),
    )
    said = " + ".join(f"{format_seconds(value)} {name}" for value, name in parts if value)
    hidden = f"; {format_seconds(step.overlapped_s)} hidden" if step.overlapped_s else ""
    return f"{format_seconds(step.time_s)} = {said}{hidden}"


def _slowest_line(rates: Rates, slowest_s: float) -> str:
    first = next((one for one in rates.ranks if one.rank == rates.slowest), None)
    if first is None:
        return "slowest rank: none, the ranks are even" if len(rates.ranks) > 1 else "one rank"
    others = fmean(one.outside for one in rates.ranks if one is not first)
    why = reason(rates.slowest, rates.ranks, _conditions(rates))
    return (
        f"slowest rank: {first.rank} ({first.host}), for {words.seconds(slowest_s)}; in"
        f" communication {_percent(1 - first.outside)} of the time, the others"
        f" {_percent(1 - others)}" + (f"; {why}" if why else "")
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _shown(ranks: Sequence[RankRate]) -> list[RankRate]:
    """All ranks if they are few; otherwise those that are longest outside of MPI."""
    order = sorted(ranks, key=lambda one: -one.outside)
    return sorted(order[:_RANKS], key=lambda one: one.rank)


def _rank_row(one: RankRate) -> list[str]:
    step = one.step
    return [
        str(one.rank),
        one.host[:20],
        str(one.steps) if one.steps else "-",
        "-" if one.steps_s is None else f"{one.steps_s:.3g}",
        "-" if one.trend is None else f"{100 * one.trend:+.0f} %",
        format_seconds(step.time_s) if step else "-",
        _percent(step.exposed_s / step.time_s) if step and step.time_s else "-",
        f"{one.mpi_s:.2f} s",
        f"{one.outside_s:.2f} s",
        words.seconds(one.call_s) if one.call_s >= 1 else "-",
    ]


def _operation_row(one: OperationRate) -> list[str]:
    name = one.operation if one.algorithm == "native" else f"{one.operation} ({one.algorithm})"
    return [
        name,
        f"{one.calls_s:,.0f}" if one.calls_s >= 100 else f"{one.calls_s:.3g}",
        bandwidth_text(one.bytes_s / GB) if one.bytes_s else "-",
        _percent(one.share),
        bandwidth_text(one.algbw_gb_s),
    ]
