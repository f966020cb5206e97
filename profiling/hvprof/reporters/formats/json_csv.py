"""A recording as JSON and as CSV (docs/reference/hvprof_report.md names the keys)."""

from __future__ import annotations

import csv
import dataclasses
from typing import Any, TextIO

from hvprof.analysis.analysis import Analysis
from hvprof.analysis.comparison.inputs import JSON_VERSION
from hvprof.analysis.summary import Row
from hvprof.analysis.timeline import StepTimeline, StepTimelines
from hvprof.model import RankRecording, Step
from hvprof.reporters.formats.limits_json import as_json as limits_as_json


def as_json(analysis: Analysis, *, full: bool = True) -> dict[str, Any]:
    """All of a recording in JSON's types.

    Args:
        analysis: analysis of the recording.
        full: includes each cell's histogram and blocks, each rank's last steps, and the
            regions' histograms; the rows have quantiles and blocks either way.
    """
    recording, shown, found = analysis.recording, analysis.exposed, analysis.limits
    free, wire = analysis.free_speedup, analysis.between_hosts
    return {
        "json_version": JSON_VERSION,
        "directory": str(recording.directory),
        "command": list(recording.command),
        "host": recording.host,
        "start_unix_s": recording.start_unix_s,
        "duration_s": recording.duration_s,
        "exit_code": recording.exit_code,
        "versions": recording.versions,
        "source": recording.source,
        "hang": recording.hang,
        "size": recording.size,
        "exposed": dataclasses.asdict(shown) if shown else None,
        "steps": step_as_json(recording.all_steps),
        "step_parts": dataclasses.asdict(analysis.step_parts) if analysis.step_parts else None,
        "step_blocks": dataclasses.asdict(analysis.step_blocks) if analysis.step_blocks else None,
        "run_s": analysis.shares.run_s,
        "free_speedup": dataclasses.asdict(free) if free else None,
        "limits": limits_as_json(found) if found else None,
        "between_hosts": dataclasses.asdict(wire) if wire else None,
        "timeline": _timeline(analysis.timeline) if analysis.timeline else None,
        "conditions": [dataclasses.asdict(one) for one in analysis.conditions],
        "sites": [dataclasses.asdict(one) for one in analysis.sites],
        **{
            traffic: [dataclasses.asdict(row) for row in of_traffic]
            for traffic, of_traffic in analysis.rows.items()
        },
        "ranks": [_rank(rank, full=full) for rank in recording.ranks],
    }


def _timeline(found: StepTimelines) -> dict[str, Any]:
    return {
        "on_gpu": found.on_gpu,
        "mean": _profiled(found.mean),
        "steps": [_profiled(step) for step in found.steps],
    }


def _profiled(step: StepTimeline) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(step).items() if name != "busy"}


def step_as_json(step: Step | None) -> dict[str, Any] | None:
    """A sum of steps, with its overlap."""
    if step is None:
        return None
    return {**dataclasses.asdict(step), "overlap_percent": step.overlap_percent}


def write_csv(analysis: Analysis, stream: TextIO) -> None:
    """Write one line for each row of the report, with a heading.

    The columns are `traffic` and the attributes of `rows.Row`, without the blocks.
    """
    names = [field.name for field in dataclasses.fields(Row) if field.name != "blocks_s"]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["traffic", *names])
    for traffic, of_traffic in analysis.rows.items():
        for row in of_traffic:
            writer.writerow([traffic, *(_cell(getattr(row, name)) for name in names)])


def _cell(value: Any) -> Any:
    # A spreadsheet would evaluate a name that begins like a formula.
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return value


def _rank(rank: RankRecording, *, full: bool) -> dict[str, Any]:
    left_out = set() if full else {"histogram", "block_calls", "blocks_s"}
    plain = {"cells", "regions", "steps"}
    return {
        **{
            field.name: _plain(getattr(rank, field.name))
            for field in dataclasses.fields(rank)
            if field.name not in plain
        },
        "cells": [_fields(cell, left_out) for cell in rank.cells],
        "regions": [_fields(region, left_out) for region in rank.regions],
        "steps": [_fields(step, set()) for step in rank.steps] if full else [],
    }


def _fields(value: Any, left_out: set[str]) -> dict[str, Any]:
    # dataclasses.asdict copies deeply, which takes seconds for hundreds of ranks.
    return {name: getattr(value, name) for name in value.__slots__ if name not in left_out}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
