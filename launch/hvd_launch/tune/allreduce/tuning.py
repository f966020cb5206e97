"""`hvd-launch tune allreduce`: measure, choose, write the choice, and measure it.

A job measures one candidate at all sizes. Candidates are interleaved, round by round, so that
a disturbance affects all. The choice is then interleaved with the library's default, in separate
jobs; only that second measurement decides.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_ext.allreduce.table import load
from hvd_ext.arithmetic.statistics import from_logs
from hvd_ext.cli import Advance
from hvd_ext.errors import HvdExtError
from hvd_ext.system.files import write_text
from hvd_ext.units import format_bytes
from hvd_launch.backends.tuning import DEFAULT, Candidate, Candidates, NativeRules
from hvd_launch.machine import module
from hvd_launch.settings import Setting
from hvd_launch.tune.allreduce import native_rules, probe
from hvd_launch.tune.allreduce.choice import Proposal, Times, choose, hopeless
from hvd_launch.tune.allreduce.job_runner import JobRunner
from hvd_launch.tune.allreduce.result import Result, Verdict
from hvd_launch.tune.common import jobs
from hvd_launch.tune.common.journal import Journal
from hvd_launch.tune.common.target import Target, check_unset

_TABLE_TIMEOUT_S = 3600.0
TUNED, TABLE = "tuned", "tuned with hvd_ext's table"
# The phase, and its folder.
_PROBE = "probe"


@dataclass(frozen=True)
class Request:
    """A request to tune.

    Attributes:
        target: where jobs run.
        sizes: message_bytes, ascending.
        rounds: jobs of each candidate.
        pairs: jobs of either side, when the choice is measured.
        folder: where results go.
        with_table: measure hvd_ext's algorithms, too.
    """

    target: Target
    sizes: tuple[int, ...]
    rounds: int
    pairs: int
    folder: Path
    with_table: bool

    def subject(self, library_name: str) -> dict[str, Any]:
        """Return the properties that measurements must share to be merged."""
        return {
            "what": "allreduce",
            "library": library_name,
            "ranks": self.target.size,
            "hosts": self.target.names,
            "sizes": list(self.sizes),
        }


class Tuning:
    """One run of `tune allreduce`, or the rest of one."""

    def __init__(self, request: Request, journal: Journal, advance: Advance) -> None:
        self._request = request
        self._journal = journal
        self._jobs = JobRunner(request.target, journal, advance)

    def run(self) -> Result:
        """Do all measurements that the journal does not have yet.

        Raises:
            HvdExtError: the library's default cannot be measured.
            UsageError: the environment sets a variable that would be measured.
        """
        request = self._request
        facts = self._facts()
        found = request.target.backend.library.candidates(len(facts["ranks_per_node"]))
        form = self._form(found, ((0, found.all[-1].name),), facts)
        forced = [setting for candidate in found.all for setting in candidate.settings]
        check_unset((*forced, *(form.settings if form else ())))
        self._jobs.total = 1 + request.rounds * len(found.all) + 2 * request.pairs
        self._jobs.total += (2 * request.pairs + 1) * request.with_table
        dropped = self._measure(found)
        times = self._jobs.times("measure")
        proposal = choose(times, found, form is not None)
        if proposal.single is None and (sizes := self._ignored(found, proposal, times, facts)):
            where = ", ".join(map(format_bytes, sizes))
            dropped["the choice by message size"] = f"was not followed by the library at {where}"
            proposal = choose(times, found, mixed=False)
        native = self._try_native(found, proposal, facts)
        if native is None or not native.overall.gained:
            self._remove(*native_rules.FILES)
        kept = native.settings if native is not None and native.overall.gained else ()
        table = self._try_table(kept, dropped) if request.with_table else None
        if table is None or not table.overall.gained:
            self._remove("table.json")
        return Result(facts, found, times, native, table, dropped)

    def _facts(self) -> dict[str, Any]:
        """Return the library's report of itself, and of the ranks' hosts."""
        self._jobs.run(
            "facts", Candidate(DEFAULT, ()), 0, (), {"selection": self._request.target.backend.name}
        )
        entries = self._journal.entries
        starts = [n for n, e in enumerate(entries) if (e["kind"], e["phase"]) == ("facts", "facts")]
        failed = self._journal.find(kind="job", phase="facts", ok=False)
        if not starts:
            raise HvdExtError(f"no rank could measure: the job {failed[-1]['reason']}")
        # A job that was interrupted may have reported some parts before.
        last = entries[starts[-1] :]
        facts = {name: last[0][name] for name in ("library", "size", "ranks_per_node")}
        text = "".join(entry["part"] for entry in last if entry["kind"] == "selection")
        facts["selection"] = json.loads(text) if text else None
        if len(set(facts["ranks_per_node"])) > 1:
            raise HvdExtError(
                f"nodes have {facts['ranks_per_node']} ranks: tune with as many on each"
            )
        return facts

    def _measure(self, found: Candidates) -> dict[str, str]:
        dropped: dict[str, str] = {}
        for number in range(self._request.rounds):
            for candidate in found.all:
                if candidate.name in dropped:
                    self._jobs.count()
                    continue
                times = self._jobs.times("measure")
                sizes = [
                    size
                    for size in self._request.sizes
                    if candidate.name == DEFAULT or not hopeless(times, candidate.name, size)
                ]
                reason = self._jobs.run("measure", candidate, number, sizes)
                if reason is not None and candidate.name == DEFAULT:
                    raise HvdExtError(f"the library's default could not be measured: {reason}")
                if reason is not None:
                    dropped[candidate.name] = reason
        return dropped

    def _form(
        self,
        found: Candidates,
        choices: Sequence[tuple[int, str]],
        facts: dict[str, Any],
        below: str = "",
    ) -> NativeRules | None:
        target = self._request.target
        folder = self._request.folder.resolve() / below
        return native_rules.native_rules(
            target.backend, found, choices, target.size, folder, facts["selection"]
        )

    def _ignored(
        self, found: Candidates, proposal: Proposal, times: Times, facts: dict[str, Any]
    ) -> list[int]:
        """Return the sizes at which the library does not follow the proposal."""
        tried = probe.plan(times, found, proposal.choices)
        if tried is None:
            return []
        folder = self._request.folder / _PROBE
        sides = {"forced": found[tried.slow].settings}
        for name, choices in (("usual", proposal.choices), ("probed", tried.choices)):
            form = self._form(found, choices, facts, f"{_PROBE}/{name}")
            assert form is not None
            if form.file is not None:
                (folder / name).mkdir(parents=True, exist_ok=True)
                write_text(folder / name / form.file, form.text)
            sides[name] = form.settings
        phase = f"{_PROBE} {_digest(tried)}"
        self._jobs.total += len(sides) * probe.LEAST_ROUNDS
        wrong: list[int] = []
        for number in range(probe.MOST_ROUNDS):
            for name, settings in sides.items():
                side = Candidate(name, settings)
                reason = self._jobs.run(phase, side, number, self._request.sizes)
                if reason is not None:
                    raise HvdExtError(f"the job with the choice by message size {reason}")
            least = {
                name: {size: min(by_round.values()) for size, by_round in by_size.items()}
                for name, by_size in self._jobs.times(phase).items()
            }
            wrong = probe.ignored(tried, **least)
            if number + 1 >= probe.LEAST_ROUNDS and not wrong:
                break
        shutil.rmtree(folder, ignore_errors=True)
        return wrong

    def _try_native(
        self, found: Candidates, proposal: Proposal, facts: dict[str, Any]
    ) -> Verdict | None:
        """Write the proposal in the library's own form, and run with it and without."""
        if proposal.single == DEFAULT:
            return None
        files: tuple[Path, ...] = ()
        if proposal.single is not None:
            settings = found[proposal.single].settings
        else:
            form = self._form(found, proposal.choices, facts)
            assert form is not None
            settings = form.settings
            if form.file is not None:
                files = (self._request.folder / form.file,)
                write_text(files[0], form.text)
        sides = (Candidate(DEFAULT, ()), Candidate(TUNED, settings))
        return self._verdict(f"verify {_digest(proposal)}", proposal, sides, files)

    def _try_table(self, settings: tuple[Setting, ...], dropped: dict[str, str]) -> Verdict | None:
        """Measure hvd_ext's algorithms with these settings, and run with the table and without."""
        path = self._request.folder.resolve() / "table.measured.json"
        phase = f"table {_digest(settings)}"
        if not (path.exists() and self._journal.find(kind="job", phase=phase, ok=True)):
            path.unlink(missing_ok=True)
            sizes = self._request.sizes
            command = [*module("hvd_ext.allreduce.measure"), "-o", str(path)]
            command += ["--least", str(sizes[0]), "--most", str(sizes[-1])]
            self._jobs.show("hvd_ext's algorithms")
            outcome = jobs.run(
                self._request.target, command, settings, _TABLE_TIMEOUT_S, lambda line: None
            )
            ok = outcome.code == 0 and path.exists()
            self._journal.append(
                {"kind": "job", "phase": phase, "ok": ok, "wall_s": round(outcome.wall_s, 2)}
            )
            if not ok:
                dropped["hvd_ext.allreduce.measure"] = outcome.reason
                return None
        self._jobs.count()
        rows = [row for row in load(path).rows if row.memory == "host"]
        proposal = Proposal(rows[0].choices if rows else ((0, "native"),), 1.0)
        if proposal.choices == ((0, "native"),):
            return None
        sides = (Candidate(TUNED, settings), Candidate(TABLE, settings))
        table = self._request.folder / "table.json"
        phase = f"verify {phase} {_digest(path.read_text())}"
        verdict = self._verdict(phase, proposal, sides, (table,), path)
        if verdict.overall.gained:
            shutil.copyfile(path, table)
        return verdict

    def _verdict(
        self,
        phase: str,
        proposal: Proposal,
        sides: tuple[Candidate, Candidate],
        files: tuple[Path, ...],
        table: Path | None = None,
    ) -> Verdict:
        """Run both sides interleaved, order balanced, and compare."""
        for number in range(self._request.pairs):
            for side in sides if number % 2 == 0 else sides[::-1]:
                read = {"table": str(table.resolve())} if table and side is sides[1] else {}
                reason = self._jobs.run(phase, side, number, self._request.sizes, read)
                if reason is not None:
                    raise HvdExtError(f"{side.name} {reason}")
        times = self._jobs.times(phase)
        before, after = (times[side.name] for side in sides)
        rounds = range(self._request.pairs)
        logs = {
            size: from_ratio([before[size][r] for r in rounds], [after[size][r] for r in rounds])
            for size in self._request.sizes
        }
        overall = from_logs([statistics.fmean(logs[size][r] for size in logs) for r in rounds])
        by_size = {size: from_logs(values) for size, values in logs.items()}
        return Verdict(proposal, sides[1].settings, overall, by_size, files)

    def _remove(self, *names: str) -> None:
        for name in names:
            (self._request.folder / name).unlink(missing_ok=True)


def from_ratio(before: Iterable[float], after: Iterable[float]) -> list[float]:
    """Return the logarithms of before / after, pair by pair."""
    return [math.log(b / a) for b, a in zip(before, after, strict=True)]


def _digest(what: object) -> str:
    """Return a digest that distinguishes the measurements of different choices."""
    return hashlib.sha256(repr(what).encode()).hexdigest()[:8]
