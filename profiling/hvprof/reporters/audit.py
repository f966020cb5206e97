"""The words of an audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hvd_ext.units import counted, plural
from hvprof.analysis.audit import Difference, Outcome
from hvprof.printable import printable

_MOST_RANKS = 4


def lines(names: Sequence[str], outcomes: Mapping[tuple[str, int], Outcome]) -> list[str]:
    """An audit in some lines.

    Args:
        names: names of the sides A and B.
        outcomes: outcomes by what was compared and the optimizer's number.
    """
    several = len({number for _, number in outcomes}) > 1
    told = [f"{letter}: {printable(name)}" for letter, name in zip("AB", names, strict=False)]
    for (what, number), outcome in outcomes.items():
        subject = "A and B" if what == "A and B" else f"the ranks of {what}"
        if several:
            subject += f", optimizer {number}"
        told.append("")
        if outcome.difference is None:
            kinds = ", ".join(f"{kind}s" for kind in outcome.compared)
            told.append(f"{subject}: no difference in {steps_text(outcome.steps)} ({kinds})")
        else:
            told += _describe(subject, outcome.difference)
    return told


def as_json(outcomes: Mapping[tuple[str, int], Outcome]) -> dict[str, Any]:
    """The result in JSON's types."""
    return {
        "comparisons": [
            {
                "compared": what,
                "optimizer": number,
                "steps": outcome.steps,
                "kinds": list(outcome.compared),
                "difference": outcome.difference.as_json() if outcome.difference else None,
            }
            for (what, number), outcome in outcomes.items()
        ]
    }


def _describe(subject: str, found: Difference) -> list[str]:
    what: str = found.kind
    if found.parameter is not None:
        what += f" of {printable(found.parameter)}"
        if found.more:
            what += f" and {found.more} more"
    told = [
        f"{subject} differ {when(found)}: {what}, on {ranks_text(found.ranks)}",
        f"  this points to {found.points_to}",
    ]
    return told + [f"  also different: {printable(line)}" for line in found.evidence]


def when(found: Difference) -> str:
    """The step of a difference, or the audited steps between which it began."""
    if found.step == 0:
        return "before the first step"
    if found.after_step is not None and found.after_step < found.step - 1:
        return f"between step {found.after_step} and step {found.step}"
    return f"in step {found.step}"


def steps_text(count: int) -> str:
    """A number of records."""
    return counted(count, "record")


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks by number; of many, the first."""
    shown = ", ".join(map(str, ranks[:_MOST_RANKS]))
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"{plural(len(ranks), 'rank')} {shown}{more}"
