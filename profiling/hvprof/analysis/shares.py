"""Shares of time that communication takes, and the whole that they refer to."""

from __future__ import annotations

from dataclasses import dataclass

from hvprof.analysis.contention import StepParts
from hvprof.analysis.summary import Exposed
from hvprof.model import Recording


@dataclass(frozen=True, slots=True)
class Shares:
    """Seconds of a rank, as means.

    Attributes:
        run_s: time from start to end, or to the last sign of life; 0 if neither is known.
        base_s: time that shares refer to: the steps if the program marks them, else the run.
        share_of: "steps" or "run", accordingly.
        exposed_s: time blocked on communication; None if unknown.
        slowed_s: time queued behind threads that communicate; None if the kernel does not count it.
    """

    run_s: float
    base_s: float
    share_of: str
    exposed_s: float | None
    slowed_s: float | None = None

    @property
    def communication_s(self) -> float | None:
        """Cost of communication, as far as it is known."""
        return None if self.exposed_s is None else self.exposed_s + (self.slowed_s or 0.0)


def shares(recording: Recording, exposed: Exposed | None, parts: StepParts | None) -> Shares:
    """The shares of a recording, with its steps as its regions and the kernel describe them."""
    ends = [rank.until_unix_s - rank.start_unix_s for rank in recording.ranks if rank.until_unix_s]
    run_s = max(sum(ends) / len(ends), 0.0) if ends else recording.duration_s or 0.0
    steps = recording.all_steps
    marked = steps is not None and steps.time_s > 0
    return Shares(
        run_s=run_s,
        base_s=steps.time_s if steps is not None and marked else run_s,
        share_of="steps" if marked else "run",
        exposed_s=steps.exposed_s if steps else exposed.time_s if exposed else None,
        slowed_s=parts.slowed_s * steps.index if steps and parts and parts.slowed_s else None,
    )
