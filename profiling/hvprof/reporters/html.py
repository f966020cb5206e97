"""Reports as one offline HTML file: no scripts, no network, the raw data inside."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hvd_ext.units import format_bytes, format_seconds
from hvprof.analysis.advice import Advice, base_s, exposed_s, share_of
from hvprof.analysis.layers import LayerTable
from hvprof.analysis.scaling import limits
from hvprof.analysis.summary import Row, rows
from hvprof.analysis.wait_split import Split
from hvprof.format.key import TRAFFIC
from hvprof.recording.model import Recording
from hvprof.reporters.figures import traffic, training
from hvprof.reporters.figures.base import Figure, plain
from hvprof.reporters.header import facts, recorder_cost, registration, warnings
from hvprof.reporters.json_csv import as_json
from hvprof.reporters.page import render_page

if TYPE_CHECKING:
    pass

_MOST_RANKS = 1024


def report_page(
    recording: Recording,
    split: Split | None,
    advices: Sequence[Advice],
    layers: LayerTable | None,
    peak_gb_s: float | None,
) -> str:
    """A recording's page.

    Args:
        recording: of one job.
        split: its waiting against transfer.
        advices: what to try next.
        layers: of its model, where they were measured.
        peak_gb_s: what the link or the memory can do, in 10^9 bytes/s; where it is None,
            shares are of the best bandwidth in the recording.
    """
    sections = [
        _section(
            "The step",
            training.step_time(recording),
            training.overlap(recording),
            training.regions(recording),
            training.limits(limits(recording)),
        ),
        _section(
            "Allreduce by message size",
            traffic.allreduce(recording),
            tables=[_bandwidths(recording, peak_gb_s)],
        ),
        _section("Ranks, and who waits for whom", traffic.ranks(recording), traffic.waiting(split)),
        _section(
            "Layers", training.layers(layers), tables=[_layer_table(layers)] if layers else []
        ),
        _section(
            "Control traffic and everything else",
            traffic.control(recording),
            tables=[_everything(recording)],
        ),
    ]
    directory = recording.directory
    data = as_json(recording, full=False)
    if layers:
        data["layers"] = layers.as_json()
    return render_page(
        "report.html.j2",
        data,
        title=f"hvprof: {directory.name}",
        name=directory.resolve().name or str(directory),
        command=shlex.join(recording.command) or "(command not recorded)",
        facts=facts(recording),
        tiles=_tiles(recording, split),
        warnings=warnings(recording),
        verdict=verdict(recording, split, advices),
        advices=[dataclasses.asdict(advice) for advice in advices],
        sections=[one for one in sections if one["figures"] or one["tables"]],
        log=_log(recording),
        log_caption="What was recorded, by what, and at what cost.",
    )


def verdict(recording: Recording, split: Split | None, advices: Sequence[Advice]) -> str:
    """The report in two or three sentences."""
    total_s, stood_s = base_s(recording), exposed_s(recording)
    sentences = []
    if stood_s is not None and total_s:
        sentences.append(
            f"Communication that was not hidden takes {100 * stood_s / total_s:.0f} % of the "
            f"{share_of(recording)}"
            f" ({format_seconds(stood_s)} of {format_seconds(total_s)} a rank)."
        )
    elif total_s:
        data_s = sum(row.time_s for row in rows(recording, "data"))
        sentences.append(
            f"Data traffic takes {format_seconds(data_s)} of a rank's {format_seconds(total_s)};"
            " how much of it is hidden is not known: mark steps with hvprof.step()."
        )
    if split and split.time_s:
        about = "An estimated " if split.source == "estimate" else ""
        text = f"{about}{100 * split.wait_s / split.time_s:.0f} % of the time in collectives is"
        sentences.append(f"{text} waiting for late ranks, not moving data.")
    if advices and advices[0].most_percent is not None:
        first = advices[0]
        sentences.append(
            f"The most promising change: {first.title[0].lower()}{first.title[1:]}, at most "
            f"{first.most_percent:.0f} % of the {first.share_of}."
        )
    return " ".join(sentences) or "There is no traffic to judge."


def _section(
    title: str, *charts: Iterable[Figure], tables: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    found = [plain(figure) for chart in charts for figure in chart]
    return {"title": title, "figures": found, "tables": [one for one in tables if one["rows"]]}


def _tiles(recording: Recording, split: Split | None) -> list[dict[str, str]]:
    tiles = []
    step = recording.all_steps
    stood_s, total_s = exposed_s(recording), base_s(recording)
    if step and step.index:
        tiles.append((format_seconds(step.time_s / step.index), f"a step, mean of {step.index}"))
    elif total_s:
        tiles.append((format_seconds(total_s), "run of a rank"))
    if stood_s is not None and total_s:
        tiles.append((f"{100 * stood_s / total_s:.1f} %", "exposed communication"))
        if total_s > stood_s:
            tiles.append((f"{total_s / (total_s - stood_s):.2f} x", "if communication were free"))
    if step and step.overlap_percent is not None:
        tiles.append((f"{step.overlap_percent:.0f} %", "of communication hidden"))
    if split and split.time_s:
        note = " (estimated)" if split.source == "estimate" else ""
        tiles.append(
            (f"{100 * split.wait_s / split.time_s:.0f} %", f"of collectives is waiting{note}")
        )
    found = [row for row in rows(recording, "data") if row.operation == "allreduce"]
    if found:
        best = max(found, key=lambda row: row.busbw_gb_s or 0)
        tiles.append((format_seconds(sum(row.time_s for row in found)), "in allreduce, a rank"))
        if best.busbw_gb_s:
            tiles.append((f"{best.busbw_gb_s:.3g} GB/s", f"best busbw ({best.message_size})"))
    tiles.append((registration(recording).split(" of ")[0], "registration cache hits"))
    return [{"value": value, "what": what} for value, what in tiles]


def _bandwidths(recording: Recording, peak_gb_s: float | None) -> dict[str, Any]:
    found = [row for row in rows(recording, "data") if row.operation == "allreduce"]
    best = peak_gb_s or max((row.busbw_gb_s or 0 for row in found), default=0)
    what = f"of {peak_gb_s:g} GB/s" if peak_gb_s else "of the best row"
    names = ["message size", "algorithm", "ranks", "calls", "total", "algbw", "busbw", what]
    names += ["median", "99 %", "longest"]
    table = [
        [
            row.message_size,
            row.algorithm,
            row.size,
            _calls(row),
            format_seconds(row.time_s),
            _bandwidth(row.algbw_gb_s),
            _bandwidth(row.busbw_gb_s),
            f"{100 * row.busbw_gb_s / best:.3g} %" if row.busbw_gb_s and best else "-",
            _time(row.p50_s),
            _time(row.p99_s),
            format_seconds(row.max_s),
        ]
        for row in found
    ]
    caption = (
        "Calls and total are a rank's. algbw: message over time, 10^9 bytes/s; busbw: times "
        "2(n-1)/n, what the links carry. Times hold the waiting for late ranks."
    )
    return {"names": names, "rows": table, "caption": caption}


def _everything(recording: Recording) -> dict[str, Any]:
    names = ["operation", "traffic", "message size", "calls", "bytes", "total", "worst rank"]
    names += ["median", "99 %", "longest"]
    table = [
        [
            row.operation if row.algorithm == "native" else f"{row.operation} ({row.algorithm})",
            traffic,
            row.message_size,
            _calls(row),
            format_bytes(row.message_bytes // len(recording.ranks)),
            format_seconds(row.time_s),
            format_seconds(row.time_max_s),
            _time(row.p50_s),
            _time(row.p99_s),
            format_seconds(row.max_s),
        ]
        for traffic in TRAFFIC
        for row in rows(recording, traffic)
    ]
    caption = (
        "All operations. Of a non-blocking one (i...), the time is that of starting it. Data is "
        "what the program exchanges; control is Horovod's coordination; transport is what "
        "hvd_ext sends to carry out reductions that stand under data."
    )
    return {"names": names, "rows": table, "caption": caption}


def _layer_table(layers: LayerTable) -> dict[str, Any]:
    last = len(layers.batches) - 1
    skinny = set(layers.skinny)
    names = ["layer", "kind", "matrix product", "gradient", "ready after"]
    names += [f"batch {batch}" for batch in layers.batches] + ["skinny"]
    table = [
        [
            layer.name,
            layer.kind,
            layer.product or "-",
            format_bytes(layer.gradient_bytes) if layer.gradient_bytes else "-",
            _time(layer.ready_s or None),
            *(format_seconds(layer.time_s(index)) for index in range(len(layers.batches))),
            "skinny" if layer in skinny else "",
        ]
        for layer in layers.layers
    ]
    caption = (
        f"{layers.model} on {' x '.join(map(str, layers.input_shape))}, {layers.threads} threads, "
        f"median of {layers.repeats}. Matrix product: rows of one sample x inner x columns; the "
        f"batch multiplies the rows. Gradients are ready so long after backward began, at a batch "
        f"of {layers.batches[last]}."
    )
    return {"names": names, "rows": table, "caption": caption}


def _log(recording: Recording) -> list[tuple[str, str]]:
    first = recording.ranks[0]
    hosts: dict[str, int] = {}
    for rank in recording.ranks:
        hosts[rank.host] = hosts.get(rank.host, 0) + 1
    shown = [f"{host} ({count})" for host, count in list(hosts.items())[:_MOST_RANKS]]
    states: dict[str, int] = {}
    for rank in recording.ranks:
        states[rank.state] = states.get(rank.state, 0) + 1
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
        ("source", recording.source),
        *((name, version) for name, version in recording.versions.items()),
    ]


def _calls(row: Row) -> str:
    even = row.calls_min == row.calls_max
    return str(row.calls_max) if even else f"{row.calls_min}-{row.calls_max}"


def _bandwidth(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _time(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)
