"""The first difference of two trainings, or of the ranks of one, by fingerprints. Pure.

In a step, the first difference is searched in the order of the computation: inputs, this rank's
gradients, their sums over all ranks, the parameters after the update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hvd_ext.audit import UNKNOWN, Audit, Header, Record
from hvd_ext.errors import UsageError

Kind = Literal["initial parameters", "input", "gradient", "sum", "update"]
_POINTS_TO: Mapping[Kind, str] = {
    "initial parameters": "another seed or checkpoint, or a broadcast that is missing",
    "input": "another order of samples, or random numbers of their augmentation",
    "gradient": "a kernel, the number of threads, random numbers of the model, or memory that "
    "was written to",
    "sum": "the exchange: its algorithm, its buckets (which are measured unless "
    "HVD_EXT_BUCKET_BYTES is set), or memory that was written to",
    "update": "the optimizer: its settings or state, or memory that was written to",
}


@dataclass(frozen=True)
class Difference:
    """The first difference.

    Attributes:
        step: the step in which it was found; 0 means before the first step.
        after_step: the last step after which there was no difference; not always the previous step.
        kind: the kind of value that differs first in that step.
        parameter: the first one that differs, in backward's order for gradients and sums.
        more: how many other parameters differ.
        ranks: the ranks that differ.
        points_to: possible causes.
        evidence: other differences between the two sides.
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
        """Return all attributes in JSON's types."""
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison.

    Attributes:
        steps: number of compared steps.
        compared: kinds of compared values.
        difference: the first difference; None if there is none.
    """

    steps: int
    compared: tuple[Kind, ...]
    difference: Difference | None


def compared(sides: Sequence[Mapping[int, Sequence[Audit]]]) -> dict[tuple[str, int], Outcome]:
    """Return outcomes by subject ("A", "B" or "A and B") and by the optimizer's number.

    A run whose own ranks differ comes first, because its differences from the other run follow from
    that.

    Raises:
        UsageError: there is nothing to compare.
    """
    found: dict[tuple[str, int], Outcome] = {}
    for label, side, other in zip("AB", sides, (*sides[1:], sides[0]), strict=False):
        for number, ranks in side.items():
            found[label, number] = between_ranks(ranks, other.get(number, ()) if sides[1:] else ())
    if len(sides) < 2:
        return found
    first, second = sides
    common = sorted(first.keys() & second.keys())
    for number in common:
        try:
            found["A and B", number] = between_runs(first[number], second[number])
        except ValueError as error:
            raise UsageError(f"optimizer {number} of A and B: {error}") from None
    return found


def between_ranks(ranks: Sequence[Audit], other: Sequence[Audit] = ()) -> Outcome:
    """Find ranks of one run whose sums or parameters differ from those of most ranks.

    Args:
        ranks: ranks of the run.
        other: another run, or none. If two groups of ranks are equally large, the ranks that differ
            from this run are wrong.
    """
    header = ranks[0].header
    by_step = [{record.step: record for record in one.records} for one in ranks]
    steps = sorted(set.intersection(*(set(one) for one in by_step)))
    groups: dict[int, list[int]] = {}
    for rank, one in enumerate(ranks):
        groups.setdefault(one.header.replicas, []).append(rank)
    kinds: tuple[Kind, ...] = ("sum", "update")
    before: int | None = None
    for step in steps:
        for kind in kinds:
            columns = [_values(kind, one[step]) for one in by_step]
            if not any(_differing([columns[rank] for rank in group]) for group in groups.values()):
                continue
            suspects = _suspects(ranks, other, step)
            found = [_minority(columns, group, suspects) for group in groups.values()]
            wrong = sorted(rank for those, _ in found for rank in those)
            indices = sorted({index for _, these in found for index in these})
            named: Kind = "initial parameters" if step == 0 else kind
            difference = _difference(step, before, named, header, header.names, indices, wrong)
            return Outcome(len(steps), kinds, difference)
        before = step
    return Outcome(len(steps), kinds, None)


def between_runs(first: Sequence[Audit], second: Sequence[Audit]) -> Outcome:
    """Find the first difference of two runs.

    With different numbers of ranks, only sums and parameters can be compared: those of rank 0.

    Raises:
        ValueError: they have no parameter or step in common.
    """
    pair = _Pair(first, second)
    if not pair.common:
        raise ValueError("they have no parameter in common")
    if not pair.steps:
        raise ValueError("they have no step in common")
    before: int | None = None
    for step in pair.steps:
        if found := pair.first_difference(step):
            kind, wrong, indices = found
            named: Kind = "initial parameters" if step == 0 else kind
            evidence, header = _evidence(first, second), first[0].header
            said = _difference(step, before, named, header, pair.common, indices, wrong, evidence)
            return Outcome(len(pair.steps), pair.kinds, said)
        before = step
    return Outcome(len(pair.steps), pair.kinds, None)


class _Pair:
    """Two runs, rank by rank.

    Attributes:
        common: parameters that both have.
        steps: steps that both have.
        kinds: kinds that can be compared, in the order in which they are computed.
    """

    def __init__(self, first: Sequence[Audit], second: Sequence[Audit]) -> None:
        names = [one[0].header.names for one in (first, second)]
        self.common = [name for name in names[0] if name in set(names[1])]
        self._places = [[each.index(name) for name in self.common] for each in names]
        same_size = len(first) == len(second)
        pairs = list(zip(first, second, strict=True)) if same_size else [(first[0], second[0])]
        self._tables = [
            tuple({record.step: record for record in one.records} for one in pair) for pair in pairs
        ]
        self.steps = sorted(set.intersection(*(set(a) & set(b) for a, b in self._tables)))
        self.kinds: tuple[Kind, ...] = ("sum", "update")
        if same_size:
            self.kinds = ("input", "gradient", *self.kinds)

    def first_difference(self, step: int) -> tuple[Kind, list[int], list[int]] | None:
        """Return the first kind that differs in a step, the ranks, and the parameters' numbers."""
        records = [(a[step], b[step]) for a, b in self._tables]
        for kind in self.kinds:
            wrong, indices = _unequal(kind, records, self._places)
            if wrong:
                return kind, wrong, indices
        return None


def _suspects(ranks: Sequence[Audit], other: Sequence[Audit], step: int) -> list[int]:
    """Return the ranks that differ from those of another run in a step."""
    if len(ranks) != len(other):
        return []
    pair = _Pair(other, ranks)
    found = pair.first_difference(step) if step in pair.steps else None
    return found[1] if found else []


def _unequal(
    kind: Kind, pairs: Sequence[tuple[Record, Record]], places: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """Return the ranks, and the numbers of parameters, whose fingerprints differ."""
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


def _differing(values: Sequence[Sequence[int]]) -> list[int]:
    """Return the numbers of parameters in which ranks differ; unknown values do not count."""
    columns = enumerate(zip(*values, strict=True))
    return [index for index, column in columns if UNKNOWN not in column and len(set(column)) > 1]


def _minority(
    values: Sequence[Sequence[int]], group: Sequence[int], suspects: Sequence[int]
) -> tuple[set[int], list[int]]:
    """Return a group's ranks that differ from most, and the parameters.

    If two values are equally frequent, the one that fewer suspects hold is right; otherwise rank
    0's.
    """
    wrong: set[int] = set()
    indices = _differing([values[rank] for rank in group])
    for index in indices:
        held = {rank: values[rank][index] for rank in group}
        counts = Counter(held.values())  # in the order of ranks
        of_suspects = Counter(held[rank] for rank in suspects if rank in held)
        right = min(counts, key=lambda value: (-counts[value], of_suspects[value]))
        wrong |= {rank for rank, one in held.items() if one != right}
    return wrong, indices


def _difference(
    step: int,
    before: int | None,
    kind: Kind,
    header: Header,
    names: Sequence[str],
    indices: Sequence[int],
    ranks: Sequence[int],
    evidence: Sequence[str] = (),
) -> Difference:
    differing = [names[index] for index in indices]
    if kind in ("gradient", "sum"):
        order = {name: place for place, name in enumerate(header.backward)}
        differing.reverse()  # without an order the last layer is first
        differing.sort(key=lambda name: order.get(name, len(order)))
    return Difference(
        step,
        before,
        kind,
        differing[0] if differing else None,
        max(0, len(differing) - 1),
        tuple(ranks),
        _POINTS_TO[kind],
        tuple(evidence),
    )


def _evidence(first: Sequence[Audit], second: Sequence[Audit]) -> list[str]:
    """Return other differences of rank 0: versions, threads, settings, numbers of ranks."""
    found = []
    if len(first) != len(second):
        found.append(f"ranks: {len(first)} and {len(second)}")
    a, b = first[0].header.environment, second[0].header.environment
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            found.append(f"{name}: {a.get(name, 'unset')} and {b.get(name, 'unset')}")
    return found
