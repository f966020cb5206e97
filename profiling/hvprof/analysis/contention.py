"""CPU contention: the time that hidden communication takes from computing.

A thread that communicates needs a core while it does, and Horovod's spins on one while it waits.
If a rank has no free core, the training thread is queued for that time: the kernel counts it
(run_delay, in /proc/.../schedstat), and it is part of the step's computing. Communication need not
cause all of it, so on each host

    slowed <= CPU time of the threads that communicate * max(1, ranks / cores)

(who holds a core delays those that share it), and without communication a step still takes

    time >= CPU time of what computes / cores

The rest of the queue is waiting: for other programs, or for ranks that share cores. The
exchange also competes for caches and memory bandwidth, which lengthens the computing itself; the
kernel does not measure that.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from hvprof.model import RankRecording, Recording, Step


@dataclass(frozen=True, slots=True)
class StepParts:
    """The parts of a rank's step, which add up to `time_s`.

    Attributes:
        time_s: mean time of a step.
        compute_s: time on a core, in regions of kind "compute".
        slowed_s: time queued behind threads that communicate; None if the kernel does not count it.
        exposed_s: time blocked on communication.
        io_s: time in regions of kind "io".
        waiting_s: time queued behind other threads; None if the kernel does not count it.
        other_s: the rest.
        communicating_cores: number of cores that communicating threads keep busy on the host.
            cores: number of cores that its ranks may use; 0 if unknown.
    """

    time_s: float
    compute_s: float
    slowed_s: float | None
    exposed_s: float
    io_s: float
    waiting_s: float | None
    other_s: float
    communicating_cores: float = 0.0
    cores: float = 0.0

    @property
    def communication_s(self) -> float:
        """Return the known cost of communication."""
        return self.exposed_s + (self.slowed_s or 0.0)


def step_parts(recording: Recording) -> StepParts | None:
    """Return the parts of a step, as a mean over the ranks; None if no rank marks steps."""
    found = parts_by_rank(recording)
    if not found:
        return None
    return mean_parts(list(found.values()))


def mean_parts(found: Sequence[StepParts]) -> StepParts:
    """Return the mean of the parts of several ranks or runs."""
    means: dict[str, Any] = {
        field.name: _mean([getattr(parts, field.name) for parts in found])
        for field in fields(StepParts)
    }
    return StepParts(**means)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def parts_by_rank(recording: Recording) -> dict[int, StepParts]:
    """Return the parts of a mean step of each rank that marks steps."""
    return {
        rank.rank: _parts(rank.all_steps, host, rank.all_steps.index)
        for host in hosts(recording)
        for rank in host.ranks
        if rank.all_steps and rank.all_steps.index
    }


@dataclass(frozen=True, slots=True)
class Host:
    """The ranks of a host that mark steps, and the cores that they share.

    Attributes:
        cores: cores that they may use; 0 if unknown.
        blamed: the share of their queues that communication can have caused.
        mean_least_s, median_least_s: least time of a step, for its computing; both, because the
            first steps take far longer than others.
        communicating_cores: cores that their communication keeps busy.
    """

    ranks: tuple[RankRecording, ...]
    cores: int
    blamed: float
    mean_least_s: float
    median_least_s: float
    communicating_cores: float

    def slowed_s(self, step: Step, least_s: float) -> float | None:
        """Return by how much communication slowed a step that takes at least `least_s`."""
        if step.queued_s is None:
            return None
        most_s = step.time_s - step.exposed_s - least_s
        return max(0.0, min(step.queued_s * self.blamed, most_s, step.compute_s + step.other_s))


def hosts(recording: Recording) -> list[Host]:
    """Return the hosts of the ranks that mark steps."""
    by_host: dict[str, list[RankRecording]] = defaultdict(list)
    for rank in recording.ranks:
        if rank.all_steps and rank.all_steps.time_s > 0:
            by_host[rank.host].append(rank)
    return [_host(ranks) for ranks in by_host.values()]


def _host(ranks: list[RankRecording]) -> Host:
    sums = [rank.all_steps for rank in ranks if rank.all_steps]
    cores = min(max(rank.host_cores for rank in ranks), sum(rank.cores for rank in ranks))
    queued_s = sum(step.queued_s or 0.0 for step in sums)
    communicating_s = sum(step.communicating_s for step in sums)
    delayed = max(1.0, len(ranks) / cores) if cores else 1.0
    steps = max(step.index for step in sums)
    return Host(
        ranks=tuple(ranks),
        cores=cores,
        blamed=min(1.0, communicating_s * delayed / queued_s) if queued_s else 1.0,
        mean_least_s=sum(map(_computing_s, sums)) / cores / steps if cores and steps else 0.0,
        median_least_s=sum(map(_median_computing_s, ranks)) / cores if cores else 0.0,
        communicating_cores=communicating_s / max(step.time_s for step in sums),
    )


def _computing_s(step: Step) -> float:
    """Return a rank's CPU time without its communication and without spinning for it."""
    helpers_s = max(0.0, step.process_s - step.communicating_s - step.cpu_s)
    # On a core, but not in a region that waits, where the thread may spin.
    on_core_s = max(0.0, step.compute_s + step.other_s - (step.queued_s or 0.0))
    return helpers_s + min(step.cpu_s, on_core_s)


def _median_computing_s(rank: RankRecording) -> float:
    return statistics.median(map(_computing_s, rank.steps)) if rank.steps else 0.0


def _parts(step: Step, host: Host, count: int) -> StepParts:
    slowed_s = host.slowed_s(step, count * host.mean_least_s)
    compute_s, other_s, waiting_s = step.compute_s, step.other_s, None
    if slowed_s is not None and step.queued_s is not None:
        ran_s = compute_s + other_s
        queued_s = min(step.queued_s, ran_s)
        waiting_s = queued_s - slowed_s
        # The thread is queued wherever it computes.
        on_core = 1 - queued_s / ran_s if ran_s else 0.0
        compute_s, other_s = compute_s * on_core, other_s * on_core
    return StepParts(
        time_s=step.time_s / count,
        compute_s=compute_s / count,
        slowed_s=None if slowed_s is None else slowed_s / count,
        exposed_s=step.exposed_s / count,
        io_s=step.io_s / count,
        waiting_s=None if waiting_s is None else waiting_s / count,
        other_s=other_s / count,
        communicating_cores=host.communicating_cores,
        cores=host.cores,
    )
