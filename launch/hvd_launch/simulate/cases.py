"""Which allreduces are worth simulating for a cluster, and the table's row of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvd_ext.allreduce.algorithms import ALGORITHMS, NATIVE
from hvd_ext.allreduce.table import Choices, Row
from hvd_ext.arithmetic.allreduce_work import work
from hvd_ext.errors import UsageError
from hvd_ext.units import format_bytes
from hvd_launch.simulate import trace
from hvd_launch.simulate.platform import Platform

# A case that takes this many times as long as the fastest by its formula is not simulated.
_IN_VAIN = 3.0
# A simulated algorithm replaces the library's where it is this many times as fast: the simulator
# does not see smaller differences.
_LEAST_GAIN = 1.05
# Seconds to write and replay a byte of a trace, on a core of an AMD EPYC.
_BYTE_S = 0.6e-6
# While a rank awaits no more messages than this; beyond, in proportion.
_AT_ONCE = 3
_MOST_S = 300.0
# Seconds that SMPI's own allreduce takes for each pair of ranks. On many ranks Intel MPI chooses
# rings, which take five to thirty times as long.
_PAIR_S = 4e-6
# In s, by message_bytes, then by algorithm.
Times = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True)
class Situation:
    """A row to be: a number of ranks on each node, of which `sharing` share a node's link.

    All local ranks exchange shards between the nodes at once, each with one rank of every other
    node. That equals one rank on each node with its part of the link.
    """

    nodes: int
    ranks_per_node: int
    sharing: int

    @property
    def size(self) -> int:
        return self.nodes * self.ranks_per_node

    def describe(self) -> str:
        text = f"{self.nodes} x {self.ranks_per_node}"
        return f"{text} (shards of {self.sharing})" if self.sharing > 1 else text


@dataclass(frozen=True)
class Case:
    """One allreduce to simulate, and the seconds that simulating it will take."""

    situation: Situation
    algorithm: str
    message_bytes: int
    expected_s: float


def situations(
    nodes: Sequence[int], ranks_per_node: int
) -> tuple[list[Situation], list[Situation]]:
    """Situations to simulate for these numbers of nodes, and the situations with too many ranks."""
    every: list[Situation] = []
    for count in nodes:
        every.append(Situation(count, 1, ranks_per_node))
        if ranks_per_node > 1:
            every.append(Situation(count, ranks_per_node, 1))
    good = [one for one in every if one.size <= trace.MOST_RANKS]
    return good, [one for one in every if one.size > trace.MOST_RANKS]


def plan(
    platform: Platform, situation: Situation, sizes: Sequence[int]
) -> tuple[list[Case], list[str]]:
    """Cases to simulate, the quickest first, and a line for each trace that is too large."""
    cases, refused = [], []
    for message_bytes in sizes:
        foreseen = {
            name: _formula_s(platform, situation, name, message_bytes)
            for name in ALGORITHMS
            if name != NATIVE
        }
        fastest = min(foreseen.values())
        for name, time_s in foreseen.items():
            if time_s > _IN_VAIN * fastest:
                continue
            try:
                cases.append(make_case(platform, situation, name, message_bytes))
            except UsageError as error:
                refused.append(str(error))
    return sorted(cases, key=lambda case: case.expected_s), refused


def make_case(platform: Platform, situation: Situation, name: str, message_bytes: int) -> Case:
    """One allreduce to simulate.

    Raises:
        UsageError: its trace would be too large, or take too long to simulate.
    """
    extent = trace.check(name, situation.size, message_bytes, platform.eager_bytes)
    expected_s = extent.total_bytes * _BYTE_S * max(1.0, extent.at_once / _AT_ONCE)
    if expected_s > _MOST_S:
        raise UsageError(
            f"{name}, {situation.size} ranks, {format_bytes(message_bytes)} would take "
            f"{expected_s / 60:.0f} minutes to simulate: left out"
        )
    return Case(situation, name, message_bytes, expected_s)


def library_s(situation: Situation, sizes: Sequence[int]) -> float:
    """Seconds that simulating the library's own allreduce will take."""
    return situation.size**2 * _PAIR_S * (1 + len(sizes) / 8)


def make_row(platform: Platform, situation: Situation, times: Times) -> Row:
    """The row of the simulated algorithm; its times are included for readers."""
    return Row(
        situation.nodes,
        situation.ranks_per_node,
        "host",
        _choices(times),
        measured_us=tuple(
            (size, {name: 1e6 * time_s for name, time_s in times[size].items()})
            for size in sorted(times)
        ),
        simulated=platform.describe(),
    )


def merge(simulated: Sequence[Row], old: Sequence[Row]) -> tuple[Row, ...]:
    """Measured rows stay first, unchanged; simulated rows are for other situations, or newer."""
    measured = [row for row in old if not row.simulated]
    taken = {_situation(row) for row in measured}
    new = [row for row in simulated if _situation(row) not in taken]
    taken |= {_situation(row) for row in new}
    kept = [row for row in old if row.simulated and _situation(row) not in taken]
    return (*_specific(measured), *new, *kept, *_general(measured))


def _specific(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.nodes and row.ranks_per_node]


def _general(rows: Sequence[Row]) -> list[Row]:
    """Rows for any number of nodes or ranks: the first row that matches counts."""
    return [row for row in rows if not (row.nodes and row.ranks_per_node)]


def _situation(row: Row) -> tuple[int, int, str]:
    return row.nodes, row.ranks_per_node, row.memory


def _choices(times: Times) -> Choices:
    found: list[tuple[int, str]] = []
    for size in sorted(times):
        by_name = times[size]
        name = min(by_name, key=by_name.__getitem__)
        if NATIVE in by_name and by_name[NATIVE] < _LEAST_GAIN * by_name[name]:
            name = NATIVE
        if not found or name != found[-1][1]:
            found.append((size if found else 0, name))
    return tuple(found)


def _formula_s(
    platform: Platform, situation: Situation, algorithm: str, message_bytes: int
) -> float:
    done = work(algorithm, situation.size, message_bytes)
    message_s = (2 * platform.latency_us + 2 * platform.message_us) * 1e-6
    byte_s = 8e-9 * situation.sharing / platform.link_gbit + 2e-9 * platform.byte_ns
    return (
        message_s * done.messages
        + byte_s * done.sent_bytes
        + 1e-9 * platform.combine_ns * done.reduced_bytes
    )
