"""Changed exchanges: another network, another algorithm, other buckets.

The line through the recorded exchanges gives the change of each; its time beyond the line stays.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hvd_ext.arithmetic.allreduce_work import work
from hvprof.analysis.replay.network import Line, algorithm_of, bursts
from hvprof.analysis.replay.replay import Moved, Recorded
from hvprof.analysis.replay.timeline import Exchange


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The question; None keeps the recorded value.

    Attributes:
        bandwidth: factor on the bandwidth.
        latency: factor on the latency of an exchange; latency_s: the latency itself.
        algorithm: one of hvd_ext.arithmetic.allreduce_work.FORMULAS.
        bucket_bytes: size of gradient buckets.
        exchange: False removes the exchange.
        without_slowest: has the slowest rank compute as fast as the others.
    """

    bandwidth: float = 1.0
    latency: float = 1.0
    latency_s: float | None = None
    algorithm: str | None = None
    bucket_bytes: int | None = None
    exchange: bool = True
    without_slowest: bool = False


@dataclass(frozen=True)
class Changed:
    """Gives `replay` the changed exchanges of a step."""

    asked: WhatIf
    line: Line

    def __call__(self, recorded: Recorded) -> Sequence[Moved]:
        if not self.asked.exchange:
            return ()
        pairs = list(zip(recorded.exchanges, recorded.moved, strict=True))
        changed = [one for burst in bursts(pairs) for one in self._scaled(burst)]
        if self.asked.bucket_bytes is None:
            return changed
        return self._cut(recorded, changed, self.asked.bucket_bytes)

    def time_s(self, exchange: Exchange, message_bytes: float) -> float:
        """Time of a message of this many bytes by the line, with the change."""
        algorithm = self.asked.algorithm or algorithm_of(exchange)
        latency_s, bytes_s = self._parts(algorithm, exchange.size, message_bytes)
        if self.asked.latency_s is not None:
            latency_s = self.asked.latency_s
        return latency_s * self.asked.latency + bytes_s / self.asked.bandwidth

    def _parts(self, algorithm: str, size: int, message_bytes: float) -> tuple[float, float]:
        empty_s = self.line.rates.time_s(work(algorithm, size, 0))
        return empty_s, self.line.rates.time_s(work(algorithm, size, message_bytes)) - empty_s

    def _scaled(self, burst: Sequence[tuple[Exchange, Moved]]) -> list[Moved]:
        """Exchanges that share the link, as asked."""
        before_s = [
            sum(self._parts(algorithm_of(one), one.size, one.message_bytes)) for one, _ in burst
        ]
        ratios = [
            self.time_s(one, one.message_bytes) / time_s if time_s else 1.0
            for (one, _), time_s in zip(burst, before_s, strict=True)
        ]
        # Time beyond the line, such as for a thread without a core, is not the network's.
        took_s = [sum(times_s) for times_s in zip(*(m.transfer_s for _, m in burst), strict=True)]
        shares = [min(1.0, sum(before_s) / took) if took else 0.0 for took in took_s]
        return [
            moved._replace(
                transfer_s=tuple(
                    time_s * (1 + share * (ratio - 1))
                    for time_s, share in zip(moved.transfer_s, shares, strict=True)
                )
            )
            for (_, moved), ratio in zip(burst, ratios, strict=True)
        ]

    def _cut(
        self, recorded: Recorded, changed: Sequence[Moved], bucket_bytes: int
    ) -> Sequence[Moved]:
        """The same bytes in other buckets; within a recorded bucket they become ready evenly."""
        sizes = [exchange.message_bytes for exchange in recorded.exchanges]
        done = np.concatenate([[0], np.cumsum(sizes)])
        if not done[-1]:
            return changed
        longest = max(recorded.exchanges, key=lambda one: one.message_bytes)
        ends = [*range(bucket_bytes, int(done[-1]), bucket_bytes), int(done[-1])]
        told_s = [
            self.time_s(longest, end - begin) for begin, end in zip([0, *ends], ends, strict=False)
        ]
        # The line may miss the real times of exchanges; the buckets miss them by as much.
        by_line_s = sum(self.time_s(longest, size) for size in sizes)
        ranks = range(len(recorded.step))
        took_s = [sum(moved.transfer_s[rank] for moved in changed) for rank in ranks]
        ready_s = [np.maximum.accumulate([m.ready_s[rank] for m in changed]) for rank in ranks]
        at_s = [np.interp(ends, done, [ready_s[rank][0], *ready_s[rank]]) for rank in ranks]
        late_s = [statistics.median(m.late_s[rank] for m in changed) for rank in ranks]
        return [
            Moved(
                tuple(float(at_s[rank][index]) for rank in ranks),
                tuple(late_s),
                tuple(bucket_s / by_line_s * took_s[rank] if by_line_s else 0.0 for rank in ranks),
                (False,) * len(ranks),
            )
            for index, bucket_s in enumerate(told_s)
        ]
