"""The jobs of `tune allreduce`: each measures one candidate at all sizes, none twice."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from hvd_ext.cli import Advance
from hvd_launch.backends.base import MpiLibrary
from hvd_launch.backends.tuning import DEFAULT, Candidate
from hvd_launch.machine import module
from hvd_launch.settings import Setting
from hvd_launch.tune.allreduce.rank import MARK
from hvd_launch.tune.common import jobs
from hvd_launch.tune.common.journal import Entry, Journal
from hvd_launch.tune.common.target import Target

_FIRST_TIMEOUT_S = 600.0
# A forced algorithm may be slow, or hang.
_TIMEOUT_FACTOR, _TIMEOUT_LEAST_S = 10, 60.0
# Time limit of a size's samples, as a multiple of the library's default.
_IN_VAIN = 4.0


class JobRunner:
    """Runs the jobs that the journal does not have yet, and counts for the progress bar."""

    def __init__(self, target: Target, journal: Journal, advance: Advance) -> None:
        self.target = target
        self.journal = journal
        self.total = 1
        self._advance = advance
        self._done = 0

    def show(self, what: str) -> None:
        self._advance(self._done, what, self.total)

    def count(self) -> None:
        """Count a job as done, whether it ran, was in the journal, or was left out."""
        self._done += 1

    def run(
        self,
        phase: str,
        candidate: Candidate,
        number: int,
        sizes: Sequence[int],
        more: dict[str, Any] | None = None,
    ) -> str | None:
        """Run one job, unless the journal has it; returns why it failed."""
        key = {"phase": phase, "candidate": candidate.name, "round": number}
        done = self.journal.find(kind="job", **key)
        self.show(f"{phase.split()[0]} {candidate.name}")
        self.count()
        if done and done[-1]["ok"]:
            return None
        library = self.target.backend.library
        names = [library.control_variable(setting) for setting in candidate.settings]
        task = {"sizes": list(sizes), "limits_us": self._limits(sizes), "read": names}
        command = [*module("hvd_launch.tune.allreduce.rank"), json.dumps(task | (more or {}))]
        attempt = len(done)
        seen: list[Entry] = []

        def read(line: str) -> None:
            _, mark, text = line.partition(MARK)
            if mark:
                entry = {**json.loads(text), **key, "attempt": attempt}
                seen.append(entry)
                self.journal.append(entry)

        outcome = jobs.run(self.target, command, candidate.settings, self._timeout_s(), read)
        reason = None if outcome.code == 0 else outcome.reason
        if reason is None:
            reason = _not_taken(library, candidate.settings, seen)
        self.journal.append(
            {
                "kind": "job",
                **key,
                "attempt": attempt,
                "ok": reason is None,
                "wall_s": round(outcome.wall_s, 2),
                **({"reason": reason} if reason else {}),
            }
        )
        return reason

    def times(self, phase: str) -> dict[str, dict[int, dict[int, float]]]:
        """Return medians of whole jobs' samples in us, by candidate, size and round."""
        whole = {_attempt(entry) for entry in self.journal.find(kind="job", phase=phase, ok=True)}
        times: dict[str, dict[int, dict[int, float]]] = {}
        for entry in self.journal.find(kind="time", phase=phase):
            if _attempt(entry) in whole:
                by_size = times.setdefault(entry["candidate"], {})
                by_round = by_size.setdefault(entry["message_bytes"], {})
                by_round[entry["round"]] = statistics.median(entry["us"])
        return times

    def _limits(self, sizes: Sequence[int]) -> list[float]:
        measured = self.times("measure").get(DEFAULT, {})
        return [
            _IN_VAIN * max(measured[size].values()) if size in measured else 1e12 for size in sizes
        ]

    def _timeout_s(self) -> float:
        whole = self.journal.find(kind="job", phase="measure", candidate=DEFAULT, ok=True)
        if not whole:
            return _FIRST_TIMEOUT_S
        return max(_TIMEOUT_LEAST_S, _TIMEOUT_FACTOR * max(entry["wall_s"] for entry in whole))


def _attempt(entry: Entry) -> tuple[Any, ...]:
    """Return the key of an entry's job."""
    return tuple(entry.get(name) for name in ("candidate", "round", "attempt"))


def _not_taken(
    library: MpiLibrary, settings: Sequence[Setting], entries: Iterable[Entry]
) -> str | None:
    """Return a variable for which the library reports another value, if any."""
    facts = [entry for entry in entries if entry["kind"] == "facts"]
    values: dict[str, int | str | None] = facts[0]["variables"] if facts else {}
    for setting in settings:
        value = values.get(library.control_variable(setting))
        if not library.took(setting, value):
            return f"had {setting.name} at {value!r}, not at {setting.value!r}"
    return None
