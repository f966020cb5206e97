"""Where two trainings part, and where the ranks of one do, from their fingerprints. Pure.

In a step, what differs first is looked for in the order in which it was computed: inputs, this
rank's gradients, their sums over all ranks, the parameters after the update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hvd_ext.audit import UNKNOWN, Audit, Record

Kind = Literal["initial parameters", "input", "gradient", "sum", "update"]
_POINTS_TO: Mapping[Kind, str] = {
    "initial parameters": "another seed or checkpoint, or a broadcast that is missing",
    "input": "another order of samples, or random numbers of their augmentation",
    "gradient": "a kernel, the number of threads, random numbers of the model, or memory that "
    "was written to",
    "sum": "the exchange: its algorithm or order, or memory that was written to",
    "update": "the optimizer: its settings or state, or memory that was written to",
}


@dataclass(frozen=True)
class Difference:
    """The first difference.

    Attributes:
        step: in which it was found; 0 is before the first one.
        after_step: the last step after which there was none; not always the one before.
        kind: what differs first in that step.
        parameter: the first that differs, in the order of backward for gradients and sums.
        more: how many other parameters differ.
        ranks: that differ.
        points_to: what may cause it.
        evidence: what else differs between the two sides.
    """

    step: int
    after_step: int | None
    kind: Kind
    parameter: str | None
    more: int
    ranks: tuple[int, ...]
    points_to: str
    evidence: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """All of it, in JSON's types."""
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison.

    Attributes:
        steps: how many were compared.
        compared: the kinds that were.
        difference: None where there is none.
    """

    steps: int
    compared: tuple[Kind, ...]
    difference: Difference | None


def between_ranks(ranks: Sequence[Audit]) -> Outcome:
    """Find where ranks of one run hold other sums or parameters than most of them."""
    names = ranks[0].header.names
    by_step = [{record.step: record for record in one.records} for one in ranks]
    steps = sorted(set.intersection(*(set(one) for one in by_step)))
    kinds: tuple[Kind, ...] = ("sum", "update")
    before: int | None = None
    for step in steps:
        records = [one[step] for one in by_step]
        for kind in kinds:
            found = _minority([_values(kind, record) for record in records])
            if found:
                wrong, indices = found
                named: Kind = "initial parameters" if step == 0 else kind
                difference = _difference(step, before, named, names, indices, wrong)
                return Outcome(len(steps), kinds, difference)
        before = step
    return Outcome(len(steps), kinds, None)


def between_runs(first: Sequence[Audit], second: Sequence[Audit]) -> Outcome:
    """Find where two runs part.

    With different numbers of ranks only sums and parameters can be compared: those of rank 0.

    Raises:
        ValueError: they have no parameter or step in common.
    """
    names = first[0].header.names
    common = [name for name in names if name in set(second[0].header.names)]
    if not common:
        raise ValueError("they have no parameter in common")
    places = [[one[0].header.names.index(name) for name in common] for one in (first, second)]
    same_size = len(first) == len(second)
    pairs = list(zip(first, second, strict=True)) if same_size else [(first[0], second[0])]
    tables = [
        tuple({record.step: record for record in one.records} for one in pair) for pair in pairs
    ]
    steps = sorted(set.intersection(*(set(a) & set(b) for a, b in tables)))
    if not steps:
        raise ValueError("they have no step in common")
    kinds: tuple[Kind, ...] = ("sum", "update")
    if same_size:
        kinds = ("input", "gradient", *kinds)
    before: int | None = None
    for step in steps:
        for kind in kinds:
            wrong, indices = _unequal(kind, [(a[step], b[step]) for a, b in tables], places)
            if wrong:
                named: Kind = "initial parameters" if step == 0 else kind
                evidence = _evidence(first, second)
                found = _difference(step, before, named, common, indices, wrong, evidence)
                return Outcome(len(steps), kinds, found)
        before = step
    return Outcome(len(steps), kinds, None)


def _unequal(
    kind: Kind, pairs: Sequence[tuple[Record, Record]], places: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Ranks, and numbers of parameters, whose fingerprints differ."""
    wrong: list[int] = []
    indices: set[int] = set()
    for rank, (a, b) in enumerate(pairs):
        if kind == "input":
            if _differ(a.inputs, b.inputs):
                wrong.append(rank)
            continue
        mine, theirs = (
            [_values(kind, record)[place] for place in order]
            for record, order in zip((a, b), places, strict=True)
        )
        here = [i for i, both in enumerate(zip(mine, theirs, strict=True)) if _differ(*both)]
        if here:
            wrong.append(rank)
            indices |= set(here)
    return wrong, sorted(indices)


def _values(kind: Kind, record: Record) -> Sequence[int]:
    values = {"gradient": record.gradients, "sum": record.sums, "update": record.parameters}
    return values[kind]


def _differ(a: int, b: int) -> bool:
    return a != b and UNKNOWN not in (a, b)


def _minority(values: Sequence[Sequence[int]]) -> tuple[list[int], list[int]] | None:
    """Ranks that hold others than most, and in which parameters; of two halves, rank 0's is right.

    A fingerprint that is not known on some rank is not compared.
    """
    wrong: set[int] = set()
    indices: list[int] = []
    for index, column in enumerate(zip(*values, strict=True)):
        if len(set(column)) == 1 or UNKNOWN in column:
            continue
        counts = Counter(column)  # in the order of ranks, so rank 0's is the first of equals
        right = counts.most_common(1)[0][0]
        wrong |= {rank for rank, one in enumerate(column) if one != right}
        indices.append(index)
    return (sorted(wrong), indices) if indices else None


def _difference(
    step: int,
    before: int | None,
    kind: Kind,
    names: Sequence[str],
    indices: Sequence[int],
    ranks: Sequence[int],
    evidence: Sequence[str] = (),
) -> Difference:
    name = None
    if indices:
        # Backward begins with the last layer.
        name = names[indices[-1 if kind in ("gradient", "sum") else 0]]
    return Difference(
        step,
        before,
        kind,
        name,
        max(0, len(indices) - 1),
        tuple(ranks),
        _POINTS_TO[kind],
        tuple(evidence),
    )


def _evidence(first: Sequence[Audit], second: Sequence[Audit]) -> list[str]:
    """Other differences: versions, threads, settings, numbers of ranks; of rank 0."""
    found = []
    if len(first) != len(second):
        found.append(f"ranks: {len(first)} and {len(second)}")
    a, b = first[0].header.environment, second[0].header.environment
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            found.append(f"{name}: {a.get(name, 'unset')} and {b.get(name, 'unset')}")
    return found
