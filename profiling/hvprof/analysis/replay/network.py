"""Time of the recorded exchanges: latency + bytes x time of a byte.

The line is fitted as in `rates`. Exchanges of one length, or whose times do not depend on their
lengths, cannot separate latency from bytes: then there are two lines, and the truth is between
them.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_ext.arithmetic.allreduce_work import FORMULAS, Work, work
from hvd_ext.errors import UsageError
from hvprof.analysis.replay.rates import Rates, fit
from hvprof.analysis.replay.replay import Moved, take_apart
from hvprof.analysis.replay.timeline import Exchange, JobStep

# Algorithm that is assumed for an exchange that names none: its bytes cost the least possible.
ASSUMED = "ring"
# Lengths that span less cannot separate latency from bandwidth.
_SPAN = 2
# Steps of even and of odd number, fitted apart, find a byte's time within this factor, or it is
# noise.
_AGREE = 1.5
# Rounds of reweighting, and the relative error below which a burst lies on the line.
_ROUNDS, _EXACT = 20, 1e-4

# Algorithm, ranks, and bytes of an exchange.
Kind = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class _Burst:
    """Work, time and mean bytes of exchanges that overlapped."""

    work: Work
    time_s: float
    length: float


@dataclass(frozen=True, slots=True)
class Line:
    """A line through the recorded exchanges.

    Attributes:
        latency_s: time of an exchange without bytes, of the kind that carried most bytes.
        byte_s: additional time for each byte.
    """

    rates: Rates
    latency_s: float
    byte_s: float


@dataclass(frozen=True, slots=True)
class Network:
    """The lines that the recorded exchanges allow.

    Attributes:
        lines: one; or two, with the least latency and with the most.
        one_length: why there are two: all exchanges have about one length. Else their times say
            nothing of their lengths.
    """

    lines: tuple[Line, ...]
    one_length: bool


def algorithm_of(exchange: Exchange) -> str:
    """How an exchange was carried out, or is assumed to have been."""
    return exchange.algorithm if exchange.algorithm in FORMULAS else ASSUMED


def shortest(steps: Sequence[JobStep]) -> int:
    """Bytes of the shortest exchange that has any; 0 without one."""
    lengths = [one.message_bytes for step in steps for one in step[0].exchanges]
    return min(filter(None, lengths), default=0)


def network_of(steps: Sequence[JobStep], most_latency_s: float = math.inf) -> Network:
    """Fit the times of exchanges after all ranks had come.

    Args:
        steps: steps of the trace.
        most_latency_s: upper bound of the latency of an exchange, known from elsewhere.

    Raises:
        UsageError: nothing was exchanged.
    """
    found = list(map(_bursts, steps))
    known = list(itertools.chain.from_iterable(found))
    if not known:
        raise UsageError("the traced steps exchange no data: there is nothing to change")
    main = _most_bytes(steps)
    if _separates_lengths(known):
        halves = [list(itertools.chain.from_iterable(found[first::2])) for first in (0, 1)]
        byte_s = sorted(
            _line(_fit(half), main).byte_s for half in halves if _separates_lengths(half)
        )
        if len(byte_s) == 2 and 0 < byte_s[1] <= _AGREE * byte_s[0]:
            return Network((_line(_fit(known), main),), one_length=False)
    messages = work(*main[:2], 0).messages
    lines = tuple(
        _line(_with_latency(known, latency_s / messages), main)
        for latency_s in (0.0, most_latency_s)
    )
    return Network(lines, one_length=not _separates_lengths(known))


def bursts(pairs: Sequence[tuple[Exchange, Moved]]) -> list[list[tuple[Exchange, Moved]]]:
    """Exchanges in groups; in a group, each but the first began before the previous one had ended.

    They share the link, so only what they took together means something.
    """
    found: list[list[tuple[Exchange, Moved]]] = []
    for pair in pairs:
        if found and any(pair[1].overlaps):
            found[-1].append(pair)
        else:
            found.append([pair])
    return found


def _bursts(step: JobStep) -> list[_Burst]:
    recorded = take_apart(step)
    found = []
    for burst in bursts(list(zip(recorded.exchanges, recorded.moved, strict=True))):
        kinds = [_kind(exchange) for exchange, _ in burst if exchange.message_bytes]
        time_s = sum(statistics.fmean(moved.transfer_s) for _, moved in burst)
        if kinds and time_s > 0:
            found.append(_measured(kinds, time_s))
    return found


def _measured(kinds: Sequence[Kind], time_s: float) -> _Burst:
    works = [work(*kind) for kind in kinds]
    total = Work(
        sum(one.messages for one in works),
        sum(one.sent_bytes for one in works),
        sum(one.reduced_bytes for one in works),
    )
    return _Burst(total, time_s, statistics.fmean(kind[-1] for kind in kinds))


def _separates_lengths(known: Sequence[_Burst]) -> bool:
    lengths = [one.length for one in known]
    return bool(lengths) and max(lengths) >= _SPAN * min(lengths)


def _fit(known: Sequence[_Burst]) -> Rates:
    """Find the line of least absolute relative error, which a few stalls do not distort."""
    works, times_s = [one.work for one in known], [one.time_s for one in known]
    rates = fit(works, times_s)
    for _ in range(_ROUNDS):
        errors = [abs(rates.time_s(one.work) / one.time_s - 1) for one in known]
        rates = fit(works, times_s, [1 / max(error, _EXACT) for error in errors])
    return rates


def _with_latency(known: Sequence[_Burst], message_s: float) -> Rates:
    """A message has at most this latency; the time beyond it belongs to bytes. This is repeated."""
    messages, sent_bytes, times_s = np.array(
        [(one.work.messages, one.work.sent_bytes, one.time_s) for one in known]
    ).T
    message_s = min(message_s, _median(times_s / messages, messages / times_s))
    rest_s = np.maximum(times_s - message_s * messages, 0)
    return Rates(message_s, _median(rest_s / sent_bytes, sent_bytes / times_s), 0.0)


def _median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def _most_bytes(steps: Sequence[JobStep]) -> Kind:
    """The kind of exchange that carried most bytes."""
    carried: Counter[Kind] = Counter()
    for exchange in (one for step in steps for one in step[0].exchanges):
        carried[_kind(exchange)] += exchange.message_bytes
    return max(carried, key=lambda kind: carried[kind])


def _kind(exchange: Exchange) -> Kind:
    return algorithm_of(exchange), exchange.size, exchange.message_bytes


def _line(rates: Rates, kind: Kind) -> Line:
    empty_s = rates.time_s(work(*kind[:2], 0))
    return Line(rates, empty_s, rates.time_s(work(*kind[:2], 1)) - empty_s)
