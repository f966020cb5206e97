"""Evidence that the rules of advice share, and the largest gain of a change.

A ceiling is the gain if the cause disappeared completely. Advice on communication cannot gain more
than communication costs, if that is known: the exposed time, and the computing that it slows down.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hvd_ext.units import KIB, format_seconds
from hvprof.analysis.advice.commands import library_of, with_variables
from hvprof.analysis.findings import Findings
from hvprof.analysis.summary import Row, of_horovod

# Advice that gains less than this share of the run is not worth the work.
_WORTH_PERCENT = 2.0
# More allreduces in a step than this, of fewer bytes, are those of single tensors, because hvd_ext
# cuts no bucket that small.
_MANY_CALLS, _FEW_BYTES = 20, 16 * KIB


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to try.

    Attributes:
        title: the change.
        evidence: the numbers that support it.
        setting: the setting to change.
        most_s: largest possible gain, in seconds of a rank; None if unknown.
        most_percent: the same, in percent of `share_of`: "steps", or "run" without steps.
        command: shell command that tries it.
    """

    title: str
    evidence: str
    setting: str
    most_s: float | None
    most_percent: float | None
    share_of: str
    command: str


class Case:
    """Evidence from one recording."""

    def __init__(self, findings: Findings) -> None:
        shares, rows = findings.shares, findings.rows
        self.recording = recording = findings.recording
        self.wire = findings.between_hosts
        self.cause = findings.cause
        self.split = findings.wait_split
        self.parts = findings.step_parts
        self.conditions = findings.conditions
        # The cause leaves out the time at the start and the end that all ranks need.
        of_run_s = self.cause.run_s if self.cause else shares.run_s
        self.run_s = of_run_s
        self.base_s = shares.base_s if shares.share_of == "steps" else of_run_s
        self.share_of = shares.share_of
        self.exposed_s = shares.exposed_s
        self.slowed_s = shares.slowed_s
        self.communication_s = shares.communication_s
        self.allreduce = findings.allreduce
        self.control = of_horovod(rows["control"])
        self.control_s = sum(row.time_s for row in self.control)
        # One or two fast calls do not represent thousands.
        least_s = 0.05 * sum(row.time_s for row in self.allreduce)
        bandwidths = [row.busbw_gb_s or 0 for row in self.allreduce if row.time_s >= least_s]
        self.best_gb_s = max(bandwidths, default=0.0)
        self.library = library_of(recording)
        cells = [cell for rank in recording.ranks for cell in rank.cells]
        self.uses_torch = any(cell.source == "torch" for cell in cells)
        self.uses_hvd_ext = any(
            cell.source == "hvd_ext"
            and cell.operation == "allreduce"
            and cell.algorithm != "native"
            for cell in cells
        )
        # Horovod's ranks agree by collectives; its timeline is read without MPI's calls.
        self.uses_horovod = bool(self.control) or recording.source != "mpi"
        gradients = [c for c in cells if c.traffic == "data" and c.operation == "allreduce"]
        calls = sum(cell.calls for cell in gradients)
        self.largest_bytes = max((cell.high_bytes for cell in gradients), default=0)
        self.mean_bytes = sum(cell.message_bytes for cell in gradients) / calls if calls else 0.0
        steps = recording.all_steps.index if recording.all_steps else 0
        self.allreduces_a_step = calls / len(recording.ranks) / steps if steps else 0.0

    @property
    def sends_one_by_one(self) -> bool:
        """Whether steps make many unfused allreduces of few bytes."""
        many = self.allreduces_a_step > _MANY_CALLS and self.mean_bytes < _FEW_BYTES
        return many and not self.control

    def advice(
        self, title: str, evidence: str, setting: str, most_s: float | None, command: str
    ) -> Iterator[Advice]:
        """Return the advice, with its ceiling at most communication's cost, if it is worthwhile."""
        percent = None
        if most_s is not None:
            if self.communication_s is not None:
                most_s = min(most_s, self.communication_s)
            # The waits of a rank's threads may add up to more than the run.
            most_s = min(most_s, self.base_s) if self.base_s else most_s
            percent = 100 * most_s / self.base_s if self.base_s else None
            if percent is not None and percent < _WORTH_PERCENT:
                return
        yield Advice(title, evidence, setting, most_s, percent, self.share_of, command)

    def at_best_s(self, row: Row) -> float:
        """Return the time of a row at the best bandwidth of an allreduce here."""
        bandwidth = min(row.busbw_gb_s or 0, self.best_gb_s)
        return row.time_s * bandwidth / self.best_gb_s if self.best_gb_s else 0.0

    def again(self, suffix: str, *variables: str, change: Callable | None = None) -> str:
        """Return the recorded command with a change, and the comparison."""
        directory = Path(f"{self.recording.directory}-{suffix}")
        command = list(self.recording.command) or ["COMMAND"]
        if change:
            command = change(command)
        if variables:
            command = with_variables(command, variables, self.library)
        record = shlex.join(["hvprof", "record", "-o", str(directory), "--", *command])
        compare = shlex.join(["hvprof", "compare", str(self.recording.directory), str(directory)])
        return f"{record}\n{compare}"

    def share(self, time_s: float) -> str:
        """Format a time of the run, and its share of the run."""
        return _share(time_s, self.run_s, "run")

    def share_of_steps(self, time_s: float) -> str:
        """Format a time within the steps, and its share of them, or of the run without steps."""
        return _share(time_s, self.base_s, self.share_of)


def _share(time_s: float, whole_s: float, name: str) -> str:
    percent = f" ({100 * time_s / whole_s:.1f} % of the {name})" if whole_s else ""
    return f"{format_seconds(time_s)}{percent}"
