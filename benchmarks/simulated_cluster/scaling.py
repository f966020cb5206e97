"""Simulated allreduces by number of hosts: growth, and four libraries' choices."""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from hvd_ext.cli import progress
from hvd_ext.errors import UsageError
from hvd_ext.units import KIB, MIB
from hvd_launch.simulate import library, replay
from hvd_launch.simulate.cases import Situation, make_case, plan
from hvd_launch.simulate.platform import Platform
from hvd_launch.simulate.workers import run_all

GROWING = ("ring", "tree", "double_tree", "recursive_doubling", "rabenseifner")
_SHORT_BYTES = 4 * KIB
_GROWTH_BYTES = (_SHORT_BYTES, MIB, 100 * MIB)
_SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 100 * MIB)
# hvd_ext's choice is to take no longer than this times a library's.
_LEAST_RATIO = 0.95


class Simulator:
    """Simulated seconds, kept in a file: what was simulated once is read."""

    def __init__(self, platform: Platform, path: Path) -> None:
        """Read the file at `path`, if there is one, or begin it."""
        self.platform = platform
        self._path, self._lock = path, threading.Lock()
        self._known: dict[str, float] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                key, time_s = json.loads(line)
                self._known[key] = time_s

    def ours_s(self, situation: Situation, algorithm: str, message_bytes: int) -> float:
        """Seconds of one of hvd_ext's algorithms."""

        def simulate() -> dict[str, float]:
            nodes, ranks = situation.nodes, situation.ranks_per_node
            share = 1 / situation.sharing
            time_s = replay.time_s(
                self.platform, nodes, ranks, algorithm, message_bytes, link_share=share
            )
            return {self._key(situation, algorithm, message_bytes): time_s}

        return self._look_up(self._key(situation, algorithm, message_bytes), simulate)

    def theirs_s(
        self, situation: Situation, selector: str, message_bytes: int, sizes: Sequence[int]
    ) -> float:
        """Seconds by one of four libraries' choices; all of `sizes` are simulated at once."""

        def simulate() -> dict[str, float]:
            nodes, ranks = situation.nodes, situation.ranks_per_node
            share = 1 / situation.sharing
            found = library.times_s(self.platform, nodes, ranks, selector, sizes, share)
            return {self._key(situation, selector, size): t for size, t in found.items()}

        return self._look_up(self._key(situation, selector, message_bytes), simulate)

    def best_s(self, situation: Situation, message_bytes: int) -> tuple[str, float, list[str]]:
        """hvd_ext's fastest algorithm, its seconds, and what was too large to be simulated."""
        cases, refused = plan(self.platform, situation, (message_bytes,))
        times = {
            case.algorithm: self.ours_s(situation, case.algorithm, message_bytes) for case in cases
        }
        name = min(times, key=times.__getitem__)
        return name, times[name], refused

    def together(self, jobs: Sequence[Callable[[], object]], title: str) -> list[Any]:
        """Run jobs on all cores, in the order given."""
        ended = itertools.count(1)
        with progress(title, len(jobs)) as advance:
            return run_all(jobs, lambda _: advance(next(ended)))

    def _key(self, situation: Situation, name: str, message_bytes: int) -> str:
        platform, cluster = asdict(self.platform), asdict(situation)
        return json.dumps([platform, cluster, name, message_bytes], sort_keys=True)

    def _look_up(self, key: str, simulate: Callable[[], dict[str, float]]) -> float:
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        found = simulate()
        with self._lock:
            self._known |= found
            with self._path.open("a", encoding="utf-8") as file:
                for name, time_s in found.items():
                    file.write(json.dumps([name, time_s]) + "\n")
        return found[key]


def growth(simulator: Simulator, hosts: Sequence[int]) -> dict[str, Any]:
    """Time by the number of ranks at three sizes; for the short one the slopes of it, too."""
    if len(hosts) < 3:
        raise harness.BenchmarkError("--hosts: growth needs three numbers of hosts or more")
    cases = [
        (size, name, count)
        for count in sorted(hosts)
        for size in _GROWTH_BYTES
        for name in GROWING
        if _fits(simulator, name, count, size)
    ]
    jobs = [
        functools.partial(simulator.ours_s, Situation(count, 1, 1), name, size)
        for size, name, count in cases
    ]
    times: dict[int, dict[str, dict[int, float]]] = {}
    for (size, name, count), time_s in zip(cases, simulator.together(jobs, "growth"), strict=True):
        times.setdefault(size, {}).setdefault(name, {})[count] = time_s
    return {
        "growth_s": times,
        "fastest": {size: _fastest(by_name) for size, by_name in times.items()},
        "slopes": {
            name: slopes(list(taken), list(taken.values()))
            for name, taken in times[_SHORT_BYTES].items()
        },
    }


def _fits(simulator: Simulator, name: str, count: int, size: int) -> bool:
    """Whether a case is small enough to be simulated."""
    try:
        make_case(simulator.platform, Situation(count, 1, 1), name, size)
    except UsageError:
        return False
    return True


def _fastest(by_name: dict[str, dict[int, float]]) -> list[tuple[int, str]]:
    """From how many ranks on which algorithm is the fastest of those that were simulated."""
    found: list[tuple[int, str]] = []
    for count in sorted({count for taken in by_name.values() for count in taken}):
        there = {name: taken[count] for name, taken in by_name.items() if count in taken}
        name = min(there, key=there.__getitem__)
        if not found or found[-1][1] != name:
            found.append((count, name))
    return found


def slopes(ranks: Sequence[int], times_s: Sequence[float]) -> dict[str, float]:
    """Cost of one more rank, cost of twice the ranks, and which of the two lines fits.

    Returns:
        s_per_rank, s_per_doubling: slopes of least squares.
        r2_ranks, r2_doublings: the share of the times' variance that either line explains.
    """
    found = {}
    for name, short, values in (
        ("s_per_rank", "r2_ranks", np.array(ranks, float)),
        ("s_per_doubling", "r2_doublings", np.log2(ranks)),
    ):
        slope, offset = np.polyfit(values, times_s, 1)
        left = np.array(times_s) - (slope * values + offset)
        found[name] = float(slope)
        found[short] = float(1 - left.var() / np.var(times_s))
    return found


def selectors(
    simulator: Simulator, hosts: Sequence[int], libraries: Sequence[str]
) -> dict[str, Any]:
    """hvd_ext's fastest algorithm against each library's choice, one rank on each host."""
    situations = [Situation(count, 1, 1) for count in sorted(hosts)]
    jobs: list[Callable[[], object]] = []
    for one in situations:
        jobs += [functools.partial(simulator.best_s, one, size) for size in _SIZES]
        jobs += [
            functools.partial(simulator.theirs_s, one, name, _SIZES[0], _SIZES)
            for name in libraries
        ]
    simulator.together(jobs, "selectors")
    return {
        "selectors": [
            _row(simulator, one, size, name)
            for one in situations
            for size in _SIZES
            for name in libraries
        ]
    }


def _row(simulator: Simulator, one: Situation, size: int, selector: str) -> dict[str, Any]:
    algorithm, ours_s, refused = simulator.best_s(one, size)
    theirs_s = simulator.theirs_s(one, selector, size, _SIZES)
    row: dict[str, Any] = {
        "ranks": one.size,
        "message_bytes": size,
        "selector": selector,
        "algorithm": algorithm,
        "ratio": theirs_s / ours_s,
        "ours_s": ours_s,
        "theirs_s": theirs_s,
    }
    if row["ratio"] < _LEAST_RATIO:
        row["why"] = f"{algorithm} is the fastest of hvd_ext's; " + (
            "; ".join(refused) or "all were simulated"
        )
    return row
