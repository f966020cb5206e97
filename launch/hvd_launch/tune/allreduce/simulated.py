"""`tune allreduce --simulate`: rows of a table for simulated clusters."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hvd_ext.allreduce.algorithms import NATIVE
from hvd_ext.allreduce.table import Row
from hvd_ext.cli import Advance
from hvd_launch.simulate import library, replay
from hvd_launch.simulate.cases import Case, Situation, Times, library_s, make_row, plan, situations
from hvd_launch.simulate.platform import Platform
from hvd_launch.simulate.workers import run_all
from hvd_launch.tune.common.journal import Journal

_PHASE = "simulate"


@dataclass(frozen=True)
class Request:
    """A request for simulations.

    Attributes:
        platform: the cluster.
        nodes: each number of nodes.
        ranks_per_node: ranks on each node.
        sizes: message_bytes, ascending.
        library: library whose own allreduce must be beaten: an MpiFacts.simulated_as.
    """

    platform: Platform
    nodes: tuple[int, ...]
    ranks_per_node: int
    sizes: tuple[int, ...]
    library: str

    def subject(self) -> dict[str, Any]:
        """Return the properties that results must share to be merged."""
        return {"what": "simulate", "platform": asdict(self.platform), "library": self.library}


@dataclass(frozen=True)
class Plan:
    """The simulations to run.

    Attributes:
        situations: the future rows.
        cases: hvd_ext's algorithms, the quickest first.
        refused: a line for each row and trace that would be too large.
    """

    situations: tuple[Situation, ...]
    cases: tuple[Case, ...]
    refused: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.cases) + len(self.situations)

    def expected_s(self, sizes: Sequence[int]) -> float:
        """Return how long it takes, on all cores of this machine."""
        total = sum(case.expected_s for case in self.cases)
        total += sum(library_s(situation, sizes) for situation in self.situations)
        return total / (os.cpu_count() or 1)


def make_plan(request: Request) -> Plan:
    """Plan a request.

    Raises:
        UsageError: the platform cannot have this many nodes.
    """
    good, large = situations(request.nodes, request.ranks_per_node)
    refused = [
        f"{one.describe()}: {one.size} ranks are more than a trace may have; its row is left out"
        for one in large
    ]
    cases: list[Case] = []
    for situation in good:
        request.platform.xml(situation.nodes, situation.ranks_per_node)
        found, too_large = plan(request.platform, situation, request.sizes)
        cases += found
        refused += too_large
    cases.sort(key=lambda case: case.expected_s)
    return Plan(tuple(good), tuple(cases), tuple(refused))


def simulate(request: Request, planned: Plan, journal: Journal, advance: Advance) -> list[Row]:
    """Run the simulations that the journal does not have, on all cores; a row for each situation.

    Raises:
        HvdExtError: a simulation failed; those that are done are in the journal.
    """
    todo = [case for case in planned.cases if not _known(journal, case)]
    libraries = [
        situation
        for situation in planned.situations
        if any(_time(journal, situation, NATIVE, size) is None for size in request.sizes)
    ]
    done = planned.count - len(todo) - len(libraries)
    advance(done, total=planned.count)

    def keep(entries: list[dict[str, Any]]) -> None:
        nonlocal done
        for entry in entries:
            journal.append(entry)
        done += 1
        advance(done)

    jobs = [functools.partial(_run_case, request.platform, case) for case in todo]
    jobs += [functools.partial(_run_library, request, situation) for situation in libraries]
    run_all(jobs, keep)
    return [
        make_row(request.platform, situation, _times(journal, situation, request.sizes))
        for situation in planned.situations
    ]


def _run_case(platform: Platform, case: Case) -> list[dict[str, Any]]:
    one = case.situation
    time_s = replay.time_s(
        platform, one.nodes, one.ranks_per_node, case.algorithm, case.message_bytes, 1 / one.sharing
    )
    return [_entry(one, case.algorithm, case.message_bytes, time_s)]


def _run_library(request: Request, one: Situation) -> list[dict[str, Any]]:
    found = library.times_s(
        request.platform,
        one.nodes,
        one.ranks_per_node,
        request.library,
        request.sizes,
        1 / one.sharing,
    )
    return [_entry(one, NATIVE, size, time_s) for size, time_s in found.items()]


def _entry(situation: Situation, algorithm: str, size: int, time_s: float) -> dict[str, Any]:
    return {
        "kind": "time",
        "phase": _PHASE,
        "candidate": algorithm,
        "round": 0,
        "attempt": 0,
        "message_bytes": size,
        "us": [1e6 * time_s],
        **asdict(situation),
    }


def _found(journal: Journal, situation: Situation) -> Iterator[tuple[str, int, float]]:
    for entry in journal.find(kind="time", phase=_PHASE, **asdict(situation)):
        yield entry["candidate"], entry["message_bytes"], entry["us"][0] / 1e6


def _time(journal: Journal, situation: Situation, algorithm: str, size: int) -> float | None:
    for name, message_bytes, time_s in _found(journal, situation):
        if (name, message_bytes) == (algorithm, size):
            return time_s
    return None


def _known(journal: Journal, case: Case) -> bool:
    return _time(journal, case.situation, case.algorithm, case.message_bytes) is not None


def _times(journal: Journal, situation: Situation, sizes: Sequence[int]) -> Times:
    times: dict[int, dict[str, float]] = {size: {} for size in sizes}
    for name, size, time_s in _found(journal, situation):
        if size in times:
            times[size][name] = time_s
    return times
