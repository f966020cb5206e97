"""Limits of scaling in words and rows, for the terminal and the page alike."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hvd_ext.units import counted, format_bytes, format_seconds
from hvprof.analysis.limits.exchange import RING, TREE
from hvprof.analysis.limits.limits import Limits, Scaling
from hvprof.analysis.limits.step_time import StepTime
from hvprof.analysis.limits.stops import BATCH, EFFICIENCY, EXCHANGE, FASTEST, Stop

COLUMNS = (
    *("ranks", "batch a rank", "compute", "exchange", "exposed", "waiting", "step", "speedup"),
    *("efficiency", "overlap none to full", "as a tree", "needed GB/s", "weak"),
)
CAPTION = (
    "The batch of all ranks is kept; weak: efficiency with that of each rank kept. Speedups are "
    "over {base}. Exchange: as a ring, the least that any allreduce sends; as a tree: the speedup "
    "if it grows with lg(n), as measured for most. Overlap none to full: the speedup if nothing of "
    "the exchange were hidden, and if all of compute could hide it. Needed: the bandwidth "
    "at which backward hides it."
)

_NAMES = 80
_WORTH_A_WORD = 0.001


def verdict(limits: Limits) -> str:
    """Where scaling stops, why, and the effect of twice the bandwidth: a sentence or two."""
    ring, tree = limits.by_algorithm[RING], limits.by_algorithm[TREE]
    text = _sentence(limits, ring)
    if tree.rules and tree.rules.ranks and tree.rules != ring.rules:
        text += f" If the exchange grows with a tree's levels: {_where(tree.rules)}."
    return text


def stop_lines(limits: Limits) -> Iterator[tuple[str, str, str]]:
    """The four limits: name, and where it is met as a ring and as a tree."""
    names = {
        BATCH: "one sample a rank",
        EXCHANGE: "exchange as long as compute",
        FASTEST: "shortest step",
        EFFICIENCY: f"efficiency below {100 * limits.efficiency:g} %",
    }
    ring, tree = (limits.by_algorithm[name].stops for name in (RING, TREE))
    for one, other in zip(ring, tree, strict=True):
        yield names[one.name], _ranks(one), _ranks(other)


def facts(limits: Limits) -> Iterator[str]:
    """Basis of the limits, a sentence a line."""
    yield f"{limits.source}; batch of all ranks: {limits.batch or 'not known (--batch)'}."
    had = "not known" if limits.link_gb_s is None else f"{limits.link_gb_s:.3g} GB/s"
    line = f"{format_bytes(round(limits.message_bytes))} exchanged in a step; bandwidth: {had}"
    needed = limits.needed_gb_s(limits.step)
    yield line + (f", needed to hide it in backward: {needed:.3g} GB/s." if needed else ".")
    if limits.fixed_s > _WORTH_A_WORD * limits.step.compute_s:
        most = limits.step.compute_s / limits.fixed_s
        line = f"{format_seconds(limits.fixed_s)} of compute do not shrink with the batch: "
        line += f"{most:.3g} x at most, whatever the network"
        yield line + (f"; skinny: {_shorten(', '.join(limits.skinny))}." if limits.skinny else ".")
    if limits.ranks_per_node is None:
        yield (
            "All ranks are assumed to be on one such node: --link GBIT sets the bandwidth between "
            "nodes."
        )
    elif limits.ranks_per_node > 1:
        yield f"{limits.ranks_per_node} ranks a node share its link."
    if limits.base_ranks > 1:
        yield (
            f"{limits.network_free:.2f} x with a zero-cost network; "
            f"{limits.synchrony_free:.2f} x if ranks did not wait for each other either."
        )
    if limits.shared_input_ranks is not None:
        yield (
            "If the file system is already saturated, input takes longer than compute from "
            f"{counted(max(1, int(limits.shared_input_ranks)), 'rank')} on."
        )


def rows(limits: Limits) -> Iterator[tuple[str, ...]]:
    """The table's rows, in the order of COLUMNS."""
    ring, tree = limits.by_algorithm[RING], limits.by_algorithm[TREE]
    base_s, base = limits.step.time_s, limits.base_ranks
    for step, other, weak in zip(ring.strong, tree.strong, ring.weak, strict=True):
        speedup = base_s / step.time_s
        yield (
            f"{step.ranks:g}",
            f"{step.batch:.3g}" if limits.batch else "-",
            *map(_seconds, (step.compute_s, step.exchange_s, step.exposed_s, step.waiting_s)),
            format_seconds(step.time_s),
            f"{speedup:.2f} x",
            f"{100 * speedup * base / step.ranks:.0f} %",
            f"{base_s / step.no_overlap_s:.2f} to {base_s / step.full_overlap_s:.2f} x",
            f"{base_s / other.time_s:.2f} x",
            f"{limits.needed_gb_s(step):.3g}",
            f"{100 * base_s / weak.time_s:.0f} %",
        )


def caption(limits: Limits) -> str:
    """Explanation of the columns."""
    base = limits.base_ranks
    return CAPTION.format(base=f"the {counted(base, 'rank')} recorded")


def _sentence(limits: Limits, found: Scaling) -> str:
    what = f"A batch of {limits.batch}" if limits.batch else "The recorded batch"
    stop = found.rules
    if stop is None or stop.ranks is None or stop.step is None:
        return f"{what}: no measured limit stops scaling."
    reason = _reason(stop.name, stop.step, limits)
    if stop.ranks <= limits.base_ranks:
        text = (
            f"{what} gains nothing from more than the {counted(limits.base_ranks, 'rank')} "
            f"measured: {reason}"
        )
    else:
        text = f"{what} gains nothing beyond {counted(int(stop.ranks), 'rank')}: {reason}"
    twice = found.rules_twice
    if stop.name != BATCH and twice and twice.ranks and int(twice.ranks) > int(stop.ranks):
        text += f"; with twice the bandwidth: {_where(twice)}"
    return f"{text}."


def _reason(name: str, step: StepTime, limits: Limits) -> str:
    if name == BATCH:
        return "each has one sample"
    if name == EXCHANGE:
        return (
            f"the exchange takes {format_seconds(step.exchange_s)}, "
            f"compute {format_seconds(step.compute_s)}"
        )
    if name == FASTEST:
        return f"a step is at its shortest, {format_seconds(step.time_s)}"
    return f"the efficiency falls below {100 * limits.efficiency:g} %"


def _where(stop: Stop) -> str:
    short = {
        BATCH: "with one sample each",
        EXCHANGE: "where the exchange takes as long as compute",
        FASTEST: "where a step is shortest",
        EFFICIENCY: "by efficiency",
    }
    return f"{_ranks(stop)}, {short[stop.name]}"


def _shorten(names: str) -> str:
    return names if len(names) <= _NAMES else f"{names[:_NAMES].rpartition(',')[0]} and others"


def _seconds(value: float) -> str:
    return format_seconds(value) if value else "-"


def _ranks(stop: Stop) -> str:
    return "never" if stop.ranks is None else counted(math.floor(stop.ranks), "rank")
