"""What an audit is to say of a fault, from the case and from what the ranks noted themselves.

The notes are SHA-256 sums of gradients in the order in which backward computed them, taken by
torch's own hooks, and of their sums over the ranks: they know nothing of the audit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.audit_faults.cases import FIRST, Case


@dataclass(frozen=True)
class Expected:
    """A first difference.

    Attributes:
        parameter: None: not looked at, or none.
    """

    step: int
    kind: str
    parameter: str | None
    ranks: tuple[int, ...]


def expected(case: Case, folder: Path) -> tuple[Expected | None, bool]:
    """The difference to be named, None of a healthy pair; and whether the fault changed a bit."""
    if not case.kind:
        return None, True
    size = case.second.setup.ranks
    ranks = (case.on if case.ranks is None else case.ranks) or tuple(range(size))
    step = case.step if case.seen_in is None else case.seen_in
    if case.parameter != FIRST:
        return Expected(step, case.kind, case.parameter, ranks), True
    first = _first_in_backward(case, folder, ranks[0])
    return Expected(step, case.kind, first, ranks), first is not None


def _first_in_backward(case: Case, folder: Path, rank: int) -> str | None:
    """The first parameter with another gradient, or sum, in the step."""
    gradients, others = (
        json.loads((folder / f"{run.name}.{rank}.json").read_text())
        for run in (case.first, case.second)
    )
    order = [name for step, name, _ in gradients["gradient"] if step == case.step]
    noted = [
        {name: digest for step, name, digest in notes[case.kind] if step == case.step}
        for notes in (gradients, others)
    ]
    return next((name for name in order if noted[0][name] != noted[1][name]), None)
