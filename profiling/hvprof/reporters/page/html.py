"""A recording's report as one offline page."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Mapping

from hvd_ext.units import format_seconds
from hvprof.analysis.analysis import Analysis
from hvprof.recording.names import name_of
from hvprof.reporters.audit import as_json as audit_json
from hvprof.reporters.formats.json_csv import as_json
from hvprof.reporters.header import (
    facts,
    kernel_counts,
    recorder_cost,
    registration,
    warnings,
    wire_text,
)
from hvprof.reporters.page.page import render_page
from hvprof.reporters.page.sections import (
    audit,
    everything,
    layers,
    limits,
    partners,
    ranks,
    sites,
    sizes,
    step,
    timeline,
)
from hvprof.reporters.page.sections.base import Page, Section
from hvprof.reporters.text import bandwidth_text
from hvprof.reporters.verdict import verdict

# In their order on the page.
SECTIONS = (
    step.section,
    timeline.section,
    limits.section,
    sites.section,
    everything.section,
    sizes.section,
    ranks.section,
    partners.section,
    layers.section,
    audit.section,
)
_MOST_RANKS = 1024


def report_page(page: Page, *, now: str = "") -> str:
    """The page; for a running job it begins with `now`, lines of text about this moment."""
    analysis = page.analysis
    recording, directory = analysis.recording, analysis.recording.directory
    data = as_json(analysis, full=False)
    if page.layers:
        data["layers"] = page.layers.as_json()
    if isinstance(page.audit, Mapping):
        data["audit"] = audit_json(page.audit)
    return render_page(
        "report.html.j2",
        data,
        title=f"hvprof: {name_of(directory)}",
        name=name_of(directory),
        command=shlex.join(recording.command) or "(command not recorded)",
        facts=facts(recording),
        tiles=_tiles(analysis),
        warnings=warnings(recording),
        now=now,
        verdict=verdict(analysis),
        advices=[dataclasses.asdict(advice) for advice in analysis.advice],
        sections=[one for make in SECTIONS if (one := _filled(make(page)))],
        log=_log(analysis),
        log_caption="Source of the recording, and its overhead.",
    )


def _filled(section: Section) -> Section | None:
    """The section without empty tables, or None if nothing is left."""
    tables = [table for table in section.tables if table.rows]
    if not (section.figures or tables):
        return None
    return dataclasses.replace(section, tables=tables)


def _tiles(analysis: Analysis) -> list[dict[str, str]]:
    tiles = []
    recording, split, found = analysis.recording, analysis.wait_split, analysis.leading
    step = recording.all_steps
    blocked_s, total_s = analysis.shares.exposed_s, analysis.shares.base_s
    if step and step.index:
        tiles.append(
            (format_seconds(step.time_s / step.index), f"a step, the mean of {step.index}")
        )
    elif total_s:
        tiles.append((format_seconds(total_s), "run time per rank"))
    if blocked_s is not None and total_s:
        tiles.append(
            (
                f"{100 * blocked_s / total_s:.1f} %",
                f"of the {analysis.shares.share_of} exposed to communication",
            )
        )
    free = analysis.free_speedup
    if free is not None:
        interval = f"{free.low:.2f} to {free.high:.2f}"
        tiles.append(
            (f"{free.speedup:.2f} x", f"as fast with zero-cost communication ({interval})")
        )
    if step and step.overlap_percent is not None:
        tiles.append((f"{step.overlap_percent:.0f} %", "of the communication is hidden"))
    if split and split.time_s:
        note = " (estimated)" if split.source == "estimate" else ""
        tiles.append(
            (
                f"{100 * split.wait_s / split.time_s:.0f} %",
                f"of the time in collectives is waiting{note}",
            )
        )
    if data := analysis.rows["data"]:
        name = data[0].operation
        largest_s = sum(row.time_s for row in data if row.operation == name)
        tiles.append((format_seconds(largest_s), f"in {name} per rank"))
    if found:
        best = max(found, key=lambda row: row.busbw_gb_s or 0)
        if best.busbw_gb_s:
            tiles.append(
                (
                    bandwidth_text(best.busbw_gb_s),
                    f"best busbw of {best.operation} ({best.message_size})",
                )
            )
    if any(rank.registration_cache for rank in recording.ranks):
        tiles.append(
            (registration(recording).split(" of ")[0], "of look-ups hit the registration cache")
        )
    return [{"value": value, "what": what} for value, what in tiles]


def _log(analysis: Analysis) -> list[tuple[str, str]]:
    recording, wire = analysis.recording, analysis.between_hosts
    first = recording.ranks[0]
    hosts: dict[str, int] = {}
    for rank in recording.ranks:
        hosts[rank.host] = hosts.get(rank.host, 0) + 1
    shown = [f"{host} ({count})" for host, count in list(hosts.items())[:_MOST_RANKS]]
    states: dict[str, int] = {}
    for rank in recording.ranks:
        states[rank.state] = states.get(rank.state, 0) + 1
    counts = kernel_counts(recording.all_steps) if recording.all_steps else []
    begun = min(rank.start_unix_s for rank in recording.ranks)
    when = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(begun)) if begun else "unknown"
    return [
        ("directory", str(recording.directory)),
        ("started", when),
        ("MPI library", first.mpi_library or "unknown"),
        ("hosts (ranks)", ", ".join(shown)),
        ("ranks", ", ".join(f"{count} {state}" for state, count in states.items())),
        ("recorder", recorder_cost(recording)),
        ("registration cache", registration(recording)),
        *((("between hosts", wire_text(wire)),) if wire else ()),
        *(("kernel", line) for line in counts),
        ("source", recording.source),
        *((name, version) for name, version in recording.versions.items()),
    ]
