"""Figures of the kernel and of the machine: its use by a rank, and the rank's limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

# A core that is slow now and then is compared by its mean.
_LEAST_TRIALS = 20


@dataclass(frozen=True, slots=True)
class RunUsage:
    """Kernel counters of a rank, from MPI_Init to MPI_Finalize.

    Attributes:
        finalize_s: time within MPI_Finalize.
        cpu_s, queued_s: time that the thread which called MPI_Finalize was on a core, and time that
            it was ready to run while others had the cores.
        process_s, process_queued_s: the same, summed over all threads; process_queued_s lacks
            threads that have ended.
        before_s, after_s: time until its first call began, and time since its last call ended.
        file_bytes: bytes that its system calls read and wrote, those of sockets included.
        threads: number of threads at the end.
        calling_threads: threads that called MPI, at most 64.
    """

    finalize_s: float
    cpu_s: float
    queued_s: float
    process_s: float
    process_queued_s: float
    before_s: float
    after_s: float
    file_bytes: int
    threads: int
    calling_threads: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The clock, the speed and the CPU quota that a rank had.

    Attributes:
        looks: number of readings of the clock, one every two seconds.
        ghz_sum: the clock of its first thread's core, summed over the readings.
        periods, throttled: periods of its control group's CPU quota, and periods in which the quota
            ran out.
        quota_cores: the quota; 0: none.
        trials: how often it did the same small piece of work.
        tried_s: the time for which these trials stand: each for that since the one before.
        trials_s2: the product of this time and the trial's own, summed over the trials.
    """

    looks: int
    ghz_sum: float
    periods: int = 0
    throttled: int = 0
    quota_cores: float = 0.0
    trials: int = 0
    tried_s: float = 0.0
    trials_s2: float = 0.0

    @property
    def clock_ghz(self) -> float:
        """The mean of the looks; 0 without any."""
        return self.ghz_sum / self.looks if self.looks else 0.0

    @property
    def trial_s(self) -> float:
        """The mean time of that work; 0 if it was done too seldom."""
        known = self.trials >= _LEAST_TRIALS and self.tried_s > 0
        return self.trials_s2 / self.tried_s if known else 0.0

    def since(self, before: Machine) -> Machine:
        """The same since `before`."""
        return replace(
            self,
            looks=self.looks - before.looks,
            ghz_sum=self.ghz_sum - before.ghz_sum,
            periods=self.periods - before.periods,
            throttled=self.throttled - before.throttled,
            trials=self.trials - before.trials,
            tried_s=self.tried_s - before.tried_s,
            trials_s2=self.trials_s2 - before.trials_s2,
        )


@dataclass(frozen=True, slots=True)
class Flow:
    """The traffic of a rank to another host, by TCP.

    Attributes:
        rank: the rank that sent it.
        host, to: names of the hosts.
        busy_s: time in which some of it waited to be delivered, and the peer would take it.
        acked_bytes: bytes that the peer's host acknowledged.
        resent: number of segments that were sent again.
    """

    rank: int
    host: str
    to: str
    busy_s: float
    acked_bytes: int
    resent: int
