"""Findings of a recording, each computed once, at its first use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hvprof.analysis.between_hosts import BetweenHosts, between_hosts
from hvprof.analysis.causes.cause import Cause
from hvprof.analysis.causes.finding import find_cause
from hvprof.analysis.comparison.step_blocks import StepBlocks, step_blocks
from hvprof.analysis.conditions import Condition, conditions
from hvprof.analysis.contention import StepParts, step_parts
from hvprof.analysis.free_communication import FreeSpeedup, free_speedup
from hvprof.analysis.limits.limits import (
    Limits,
    Question,
    exchanged_bytes,
    limits_of_recording,
)
from hvprof.analysis.shares import Shares, shares
from hvprof.analysis.sites import SiteCost, site_costs
from hvprof.analysis.summary import Exposed, Row, exposed, power_rows, rows
from hvprof.analysis.timeline import StepTimelines, step_timelines
from hvprof.analysis.waiting.call_costs import call_costs
from hvprof.analysis.waiting.wait_split import Split, split
from hvprof.analysis.waiting.wait_time import waiting
from hvprof.format.key import TRAFFIC
from hvprof.model import Recording


@dataclass(frozen=True, eq=False)
class Findings:
    """Findings of a recording; rules of advice use only these.

    Attributes:
        recording: recording of one job.
    """

    recording: Recording

    @cached_property
    def rows(self) -> dict[str, list[Row]]:
        """Return the rows by traffic, the operation that took longest first."""
        return {traffic: rows(self.recording, traffic) for traffic in TRAFFIC}

    @cached_property
    def allreduce(self) -> list[Row]:
        """Return the rows of allreduce in data traffic."""
        return [row for row in self.rows["data"] if row.operation == "allreduce"]

    @cached_property
    def leading(self) -> list[Row]:
        """Return the rows of the operation that moves bytes for the longest time; may be empty."""
        moving = [row for row in self.rows["data"] if row.algbw_gb_s is not None]
        return [row for row in moving if row.operation == moving[0].operation]

    @cached_property
    def powers_of_two(self) -> list[Row]:
        """Return the messages of benchmarks, a row for each power of two; empty for a training."""
        return power_rows(self.recording)

    @cached_property
    def exposed(self) -> Exposed | None:
        """Return the time in regions of kind "communication"; None without any."""
        return exposed(self.recording)

    @cached_property
    def shares(self) -> Shares:
        """Return the whole to which shares of time refer."""
        return shares(self.recording, self.exposed, self.step_parts)

    @cached_property
    def step_parts(self) -> StepParts | None:
        """Return the parts of a step; None if steps are not marked."""
        return step_parts(self.recording)

    @cached_property
    def timeline(self) -> StepTimelines | None:
        """Return the steps that torch.profiler recorded; None without any."""
        return step_timelines(self.recording)

    @cached_property
    def step_blocks(self) -> StepBlocks | None:
        """Return the steps in blocks, which `hvprof compare` resamples; None without steps."""
        return step_blocks(self.recording)

    @cached_property
    def free_speedup(self) -> FreeSpeedup | None:
        """Return the speedup of steps without communication; None if steps are not marked."""
        return free_speedup(self.recording)

    @cached_property
    def sites(self) -> list[SiteCost]:
        """Return the places in the program that call MPI, the longest first."""
        return site_costs(self.recording, self.shares.run_s)

    @cached_property
    def wait_split(self) -> Split | None:
        """Return waiting and transfer, from the trace, hvd_ext's own reports, or estimated."""
        blocked = self.cause is not None and not self.recording.all_steps
        costs = call_costs(self.recording) if blocked else ()
        return split(self.recording, waiting(self.recording), costs)

    @cached_property
    def cause(self) -> Cause | None:
        """Return communication's cost and its cause; None for exchanges in the background."""
        return find_cause(self.recording, self.conditions)

    @cached_property
    def conditions(self) -> list[Condition]:
        """Return conditions of machines that slowed the job, the most costly first."""
        return conditions(self.recording.ranks, self.recording.flows, self.shares.run_s)

    @cached_property
    def exchanged_bytes(self) -> float:
        """Return the bytes that a rank exchanges in a step; 0 if steps are not marked."""
        return exchanged_bytes(self.rows["data"], self.recording)

    @cached_property
    def between_hosts(self) -> BetweenHosts | None:
        """Return the bytes that hvd_ext sent between hosts; None on one host or without hvd_ext."""
        return between_hosts(self.recording, self.rows)

    @cached_property
    def limits(self) -> Limits | None:
        """Return the number of ranks where scaling stops; None if the recording lacks the data."""
        parts = self.step_parts
        if parts is None or self.recording.size < 2:
            return None
        if not parts.compute_s + parts.io_s + parts.other_s:
            return None
        return limits_of_recording(self.recording, parts, self.exchanged_bytes, Question())
