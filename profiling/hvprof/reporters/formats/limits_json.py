"""Limits of scaling as JSON (docs/reference/hvprof_report.md names the keys)."""

from __future__ import annotations

import dataclasses
from typing import Any

from hvprof.analysis.limits.limits import Limits, Scaling
from hvprof.analysis.limits.step_time import StepTime
from hvprof.analysis.limits.stops import Stop


def as_json(limits: Limits) -> dict[str, Any]:
    """Limits in JSON's types, one entry of `strong` and `weak` for each number of ranks."""
    plain = ("source", "base_ranks", "ranks_per_node", "batch", "message_bytes", "link_gb_s")
    return {
        **{name: getattr(limits, name) for name in plain},
        "step": _step(limits.step, limits),
        "fixed_s": limits.fixed_s,
        "skinny": list(limits.skinny),
        "network_free_speedup": limits.network_free,
        "synchrony_free_speedup": limits.synchrony_free,
        "shared_input_ranks": limits.shared_input_ranks,
        "efficiency": limits.efficiency,
        **{name: _scaling(found, limits) for name, found in limits.by_algorithm.items()},
    }


def _scaling(found: Scaling, limits: Limits) -> dict[str, Any]:
    return {
        "stops": {stop.name: stop.ranks for stop in found.stops},
        "rules": _stop(found.rules),
        "rules_with_twice_the_bandwidth": _stop(found.rules_twice),
        "strong": [_step(step, limits) for step in found.strong],
        "weak": [_step(step, limits) for step in found.weak],
    }


def _stop(stop: Stop | None) -> dict[str, Any] | None:
    return None if stop is None else {"limit": stop.name, "ranks": stop.ranks}


def _step(step: StepTime, limits: Limits) -> dict[str, Any]:
    base_s = limits.step.time_s
    # Work of the same batch; if each rank keeps its batch, the work is `ranks / base_ranks` times
    # as much.
    work = step.batch * step.ranks / (limits.step.batch * limits.base_ranks)
    return {
        **dataclasses.asdict(step),
        "batch": step.batch if limits.batch else None,
        "step_time_s": step.time_s,
        "speedup": work * base_s / step.time_s,
        "speedup_no_overlap": work * base_s / step.no_overlap_s,
        "speedup_full_overlap": work * base_s / step.full_overlap_s,
        "efficiency": work * base_s / step.time_s * limits.base_ranks / step.ranks,
        "needed_gb_s": limits.needed_gb_s(step),
    }
