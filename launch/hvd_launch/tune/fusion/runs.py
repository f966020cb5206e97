"""Runs a training command with settings of Horovod's fusion, and keeps its rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hvd_ext.arithmetic.statistics import Interval
from hvd_ext.cli import Advance
from hvd_ext.errors import HvdExtError
from hvd_launch.tune.common import jobs
from hvd_launch.tune.common.journal import Journal
from hvd_launch.tune.common.target import Target
from hvd_launch.tune.fusion.model import (
    AUTOTUNE,
    DEFAULT,
    Point,
    finalists,
    gains,
    keep,
    propose,
)
from hvd_launch.tune.fusion.rate import Reader, Reading, throughput


@dataclass(frozen=True)
class Search:
    """A request to tune.

    Attributes:
        target: where the command runs.
        command: what each rank runs; in its words "{run}" becomes the number of the run.
        reader: finds the throughput in its output.
        seconds: time after which a run is stopped.
        trials: number of settings to try.
        pairs: runs of each of the best settings, of the defaults and of autotune.
    """

    target: Target
    command: tuple[str, ...]
    reader: Reader
    seconds: float
    trials: int
    pairs: int


@dataclass(frozen=True)
class Found:
    """The measurements.

    Attributes:
        trials: throughput of each setting's first run.
        finals: throughputs of the best, the defaults and autotune, by round.
        gains: speedups over the defaults.
        kept: the setting to use.
        by_wall_time: whether no throughput was printed, so rates are 1 / (wall time of a run).
    """

    trials: dict[Point, float]
    finals: dict[Point, list[float]]
    gains: dict[Point, Interval]
    kept: Point
    by_wall_time: bool


class Runs:
    """One run of `tune fusion`, or the rest of one."""

    def __init__(self, search: Search, journal: Journal, advance: Advance) -> None:
        self._search = search
        self._journal = journal
        self._advance = advance
        self._done = 0
        self._total = search.trials + 4 * search.pairs

    def run(self) -> Found:
        """Do all runs that the journal does not have yet.

        Raises:
            HvdExtError: the command fails with Horovod's defaults.
        """
        trials: dict[Point, float] = {}
        failed: dict[Point, float] = {}
        while len(trials) + len(failed) < self._search.trials:
            # A failed run counts as tried, and as very slow.
            point = propose(trials | failed)
            if point is None:
                break
            rate = self._rate("trial", point, 0)
            if rate is None:
                failed[point] = min(trials.values()) / 10
            else:
                trials[point] = rate
        finals: dict[Point, list[float]] = {
            point: [] for point in (DEFAULT, *finalists(trials), AUTOTUNE)
        }
        for number in range(self._search.pairs):
            for point in list(finals) if number % 2 == 0 else list(finals)[::-1]:
                rate = self._rate("final", point, number)
                if rate is None:
                    # A setting that failed once is not used, whatever its other rounds were.
                    del finals[point]
                else:
                    finals[point].append(rate)
        found = gains(finals)
        return Found(trials, finals, found, keep(found), self._by_wall_time())

    def _rate(self, phase: str, point: Point, number: int) -> float | None:
        """Return the throughput of one run; None if it failed."""
        key = {"phase": phase, "setting": [point.threshold_mib, point.cycle_ms], "round": number}
        self._advance(self._done, f"{phase} {point.name}", self._total)
        self._done += 1
        done = self._journal.find(kind="run", **key)
        if done and done[-1]["rate"] is not None:
            return float(done[-1]["rate"])
        # Different also from the number of a run that was killed.
        run_name = str(len(self._journal.find(kind="start")))
        self._journal.append({"kind": "start", **key})
        command = [word.replace("{run}", run_name) for word in self._search.command]
        readings: list[Reading] = []

        def read(line: str) -> None:
            reading = self._search.reader.read(line)
            if reading is not None:
                readings.append(reading)
                self._journal.append({"kind": "reading", **key, "line": line})

        outcome = jobs.run(
            self._search.target,
            command,
            point.settings(),
            self._search.seconds,
            read,
        )
        rate = throughput(readings)
        first = not self._journal.find(kind="run")
        by_wall_time = rate is None if first else self._by_wall_time()
        reason = None
        if outcome.code not in (0, None):
            rate, reason = None, outcome.reason
        elif rate is None and outcome.code is None:
            reason = (
                f"printed no throughput in {self._search.seconds:g} s: give --rate, or more "
                "--seconds, or a command that ends sooner; its last lines:\n"
                + "\n".join(outcome.last)
            )
        elif by_wall_time:
            rate = 1 / outcome.wall_s
        elif rate is None:
            reason = "printed no throughput, though it did before"
        entry: dict[str, Any] = {"kind": "run", **key, "rate": rate}
        entry |= {"wall_s": round(outcome.wall_s, 3), "by_wall_time": by_wall_time}
        self._journal.append(entry | ({"reason": reason} if reason else {}))
        if reason is not None and point == DEFAULT:
            raise HvdExtError(f"the command, with Horovod's defaults, {reason}")
        return rate

    def _by_wall_time(self) -> bool:
        """Whether the first run printed no throughput, so that wall times are compared."""
        whole = [entry for entry in self._journal.find(kind="run") if entry["rate"] is not None]
        return bool(whole) and bool(whole[0]["by_wall_time"])


def subject(search: Search) -> dict[str, Any]:
    """Return the properties that measurements must share to be merged."""
    return {
        "what": "fusion",
        "library": search.target.library,
        "ranks": search.target.size,
        "hosts": search.target.names,
        "command": list(search.command),
    }
