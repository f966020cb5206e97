"""Which gradients share a bucket: from when each is ready and what a bucket costs. Pure.

Buckets are exchanged one after the other, each once its last gradient is there. A bucket
of n bytes takes latency + n * byte_s, so few long ones cost least, and a short last one
is over soonest after backward. Where to cut is a shortest path, as in breaking a
paragraph into lines (Knuth and Plass, Software: Practice and Experience 11, 1981).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from hvd_ext.arena.layout import ParameterSpec
from hvd_ext.units import MIB, format_bytes, format_seconds

# The time after backward may grow by this share if it saves buckets, because each bucket costs time
# too.
_NO_WORSE = 1.05
# A bucket is long enough if the latency is a twentieth of its time. A longer one saves little, and
# its stages within the node and between nodes overlap with no other bucket's.
_LATENCY_SHARE = 0.05
_LEAST_CAP_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class BucketCost:
    """Measured time of the exchange of a bucket.

    Attributes:
        latency_s: time of an empty bucket.
        byte_s: additional time for each byte.
    """

    latency_s: float
    byte_s: float

    def time_s(self, message_bytes: Any) -> Any:
        return self.latency_s + self.byte_s * message_bytes

    @property
    def cap_bytes(self) -> float:
        """The length in bytes beyond which a longer bucket saves little."""
        if self.byte_s == 0:
            return np.inf
        return max(_LEAST_CAP_BYTES, self.latency_s / self.byte_s / _LATENCY_SHARE)


@dataclass(frozen=True, slots=True)
class BucketChoice:
    """Buckets as lists of parameters, and why.

    Attributes:
        groups: the parameters of each bucket, in the order in which they are ready.
        reason: one sentence.
        exposed_s: predicted time from the last gradient to the end of the exchange.
    """

    groups: tuple[tuple[int, ...], ...]
    reason: str
    exposed_s: float


def choose_buckets(
    parameters: Sequence[ParameterSpec], ready_s: Sequence[float], cost: BucketCost
) -> BucketChoice:
    """Cut the parameters into buckets so that the last exchange is over soonest.

    Args:
        parameters: those that have gradients.
        ready_s: when the gradient of each is ready on the last rank.
        cost: measured cost of a bucket.
    """
    order = sorted(range(len(parameters)), key=lambda index: (ready_s[index], -index))
    sizes = [parameters[i].padded_bytes for i in order]
    dtypes = [parameters[i].dtype for i in order]
    ready = [ready_s[i] for i in order]
    ends = _thin(_shortest_path(sizes, dtypes, ready, cost), sizes, dtypes, ready, cost)
    groups = tuple(tuple(order[a:b]) for a, b in pairwise([0, *ends]))
    over_s = _finish_s(ends, sizes, ready, cost)
    totals = [sum(sizes[a:b]) for a, b in pairwise([0, *ends])]
    least, most = format_bytes(min(totals)), format_bytes(max(totals))
    which = f"{len(groups)} of {least} to {most}" if len(groups) > 1 else f"one of {most}"
    reason = (
        f"{which}: "
        f"a bucket takes {format_seconds(cost.latency_s)} and "
        f"{format_seconds(cost.byte_s * 2**20)} a MiB, gradients come over "
        f"{format_seconds(ready[-1] - ready[0])}, and the exchange should be over "
        f"{format_seconds(over_s - ready[-1])} after the last"
    )
    return BucketChoice(groups, reason, over_s - ready[-1])


def _shortest_path(
    sizes: Sequence[int], dtypes: Sequence[str], ready: Sequence[float], cost: BucketCost
) -> list[int]:
    """Return the buckets' ends; over_s[j] is when the first j gradients are exchanged at best."""
    count = len(sizes)
    before = np.concatenate([[0], np.cumsum(sizes)]).astype(float)
    over_s = np.full(count + 1, -np.inf)
    cut_at = np.zeros(count + 1, int)
    run = 0  # the first of the gradients of the same dtype
    for end in range(1, count + 1):
        if end > 1 and dtypes[end - 1] != dtypes[end - 2]:
            run = end - 1
        message_bytes = before[end] - before[run:end]
        times = np.maximum(over_s[run:end], ready[end - 1]) + cost.time_s(message_bytes)
        times[:-1][message_bytes[:-1] > cost.cap_bytes] = np.inf
        best = int(np.argmin(times))
        over_s[end], cut_at[end] = times[best], run + best
    ends = [count]
    while cut_at[ends[-1]] > 0:
        ends.append(int(cut_at[ends[-1]]))
    return ends[::-1]


def _thin(
    ends: list[int],
    sizes: Sequence[int],
    dtypes: Sequence[str],
    ready: Sequence[float],
    cost: BucketCost,
) -> list[int]:
    """Leave out the cuts that gain nothing."""
    last_s = ready[-1]
    allowed_s = (_finish_s(ends, sizes, ready, cost) - last_s) * _NO_WORSE
    index = 0
    while index < len(ends) - 1:
        cut = ends[index]
        without = ends[:index] + ends[index + 1 :]
        begin = ends[index - 1] if index else 0
        may = dtypes[cut - 1] == dtypes[cut]
        may = may and sum(sizes[begin : ends[index + 1]]) <= cost.cap_bytes
        if may and _finish_s(without, sizes, ready, cost) - last_s <= allowed_s:
            ends = without
        else:
            index += 1
    return ends


def _finish_s(
    ends: Sequence[int], sizes: Sequence[int], ready: Sequence[float], cost: BucketCost
) -> float:
    over_s = -np.inf
    for begin, end in pairwise([0, *ends]):
        over_s = max(over_s, ready[end - 1]) + cost.time_s(sum(sizes[begin:end]))
    return float(over_s)
