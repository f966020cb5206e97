"""The time of a step on more ranks, from compute, exchange, overlap, waiting and input."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hvprof.analysis.limits.compute import Compute
from hvprof.analysis.limits.exchange import Exchange
from hvprof.analysis.limits.overlap import Overlap
from hvprof.analysis.limits.waiting import NO_JITTER, Jitter


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step of a rank, in seconds: `time_s` is the sum of its parts except `exchange_s`.

    Attributes:
        ranks: ranks that share the work.
        batch: batch of a rank.
        compute_s: forward and backward; backward_s of it can hide an exchange.
        exchange_s: exchange of the gradients, hidden or not, without waiting for late ranks.
        exposed_s: the part of it that backward does not hide.
        slowed_s: time that communicating threads take from computing.
        waiting_s: waiting for the last rank.
        io_s: input.
        other_s: time that does not depend on the batch.
    """

    ranks: float
    batch: float
    compute_s: float
    backward_s: float
    exchange_s: float
    exposed_s: float
    slowed_s: float
    waiting_s: float
    io_s: float
    other_s: float

    @property
    def time_s(self) -> float:
        """The step."""
        return self.without_network_s + self.exposed_s + self.slowed_s

    @property
    def without_network_s(self) -> float:
        """Return the step if the network were free; ranks still wait for each other."""
        return self.compute_s + self.io_s + self.other_s + self.waiting_s

    @property
    def no_overlap_s(self) -> float:
        """Return the step if none of the exchange were hidden."""
        return self.time_s - self.exposed_s + self.exchange_s

    @property
    def full_overlap_s(self) -> float:
        """Return the step if all of compute could hide the exchange."""
        return self.time_s - self.exposed_s + max(0.0, self.exchange_s - self.compute_s)


@dataclass(frozen=True, slots=True)
class StepModel:
    """Inputs of the step-time model.

    Attributes:
        base_ranks: ranks of the measured step, to which speedups refer.
        batch: batch of all its ranks together. If that is unknown, 1 for each rank represents it.
        compute, exchange, overlap, jitter: the parts.
        slowed: time that communicating threads take from computing, as a share of the exchange.
        io_s: input of the measured step; it shrinks with the batch of a rank.
        other_s: time that does not shrink.
    """

    base_ranks: int
    batch: float
    compute: Compute
    exchange: Exchange
    overlap: Overlap
    jitter: Jitter = NO_JITTER
    slowed: float = 0.0
    io_s: float = 0.0
    other_s: float = 0.0

    def strong(self, ranks: float) -> StepTime:
        """Return a step of `ranks` ranks that share the batch."""
        return self._step(ranks, self.batch / ranks)

    def weak(self, ranks: float) -> StepTime:
        """Return a step of `ranks` ranks that each keep their batch."""
        return self._step(ranks, self.batch / self.base_ranks)

    def speedup(self, ranks: float) -> float:
        """Return the speedup at the same batch, over the measured step."""
        return self.strong(self.base_ranks).time_s / self.strong(ranks).time_s

    def efficiency(self, ranks: float) -> float:
        """Return the speedup divided by the increase of ranks."""
        return self.speedup(ranks) * self.base_ranks / ranks

    def with_bandwidth(self, factor: float) -> StepModel:
        """Return the same over a network that is `factor` times as fast."""
        return dataclasses.replace(self, exchange=self.exchange.with_bandwidth(factor))

    def _step(self, ranks: float, batch: float) -> StepTime:
        exchange_s, backward_s = self.exchange.time_s(ranks), self.compute.backward.at(batch)
        return StepTime(
            ranks=ranks,
            batch=batch,
            compute_s=self.compute.time_s(batch),
            backward_s=backward_s,
            exchange_s=exchange_s,
            exposed_s=self.overlap.exposed_s(exchange_s, backward_s),
            slowed_s=self.slowed * exchange_s,
            waiting_s=self.jitter.waiting_s(ranks),
            io_s=self.io_s * batch * self.base_ranks / self.batch,
            other_s=self.other_s,
        )
