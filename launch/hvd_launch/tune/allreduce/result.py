"""Results of `tune allreduce`, and the settings that follow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_ext.arithmetic.statistics import Interval
from hvd_ext.units import counted
from hvd_launch.backends.tuning import Candidates
from hvd_launch.settings import Setting, render
from hvd_launch.tune.allreduce.choice import Proposal, Times


@dataclass(frozen=True)
class Verdict:
    """Result of a choice, compared with the one that it would replace."""

    proposal: Proposal
    settings: tuple[Setting, ...]
    overall: Interval
    by_size: dict[int, Interval]
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Result:
    """Results; None if nothing promised a gain, so nothing was tried."""

    facts: dict[str, Any]
    candidates: Candidates
    times: Times
    native: Verdict | None
    table: Verdict | None
    dropped: dict[str, str]


def settings_text(verdict: Verdict, facts: dict[str, Any], size: int) -> str:
    """Shell file to source before a job: the variables, with their reasons."""
    nodes = len(facts["ranks_per_node"])
    title = (
        f"measured for {counted(size, 'rank')} on {counted(nodes, 'node')}, "
        f"{facts['library']}: allreduce {verdict.overall} times as fast"
    )
    return render(verdict.settings, "sh", title) + "\n"
