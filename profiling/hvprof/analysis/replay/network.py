"""What the recorded exchanges took: latency + bytes x time of a byte.

The line is fitted as hvd_ext.allreduce.cost does. Exchanges of one length, or whose times say
nothing of their lengths, cannot tell latency from bytes: then there are two lines, and the truth
is between them.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_ext.allreduce.cost import FORMULAS, Measurement, Rates, fit, work
from hvd_ext.errors import UsageError
from hvprof.analysis.replay.replay import take_apart
from hvprof.analysis.replay.timeline import Exchange, JobStep

# What an exchange is taken to be that does not say. Its bytes cost the least that is possible.
ASSUMED = "ring"
# Lengths that span less cannot tell latency from bandwidth.
_SPAN = 2
# Steps of even and of odd number, fitted apart, find a byte's time within this factor, or it is
# noise.
_AGREE = 1.5

# Algorithm, ranks, and bytes of an exchange.
Kind = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Line:
    """A line through the recorded exchanges.

    Attributes:
        latency_s: of an exchange without bytes, of the kind that took most of the time.
        byte_s: more for each byte of it.
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
    """How an exchange was carried out, or what it is taken to be."""
    return exchange.algorithm if exchange.algorithm in FORMULAS else ASSUMED


def shortest(steps: Sequence[JobStep]) -> int:
    """Bytes of the shortest exchange that has any; 0 without one."""
    lengths = [one.message_bytes for step in steps for one in step[0].exchanges]
    return min(filter(None, lengths), default=0)


def network_of(steps: Sequence[JobStep], most_latency_s: float = math.inf) -> Network:
    """Fit what exchanges took after all ranks had come.

    Args:
        steps: of the trace.
        most_latency_s: what is known of the latency of an exchange besides.

    Raises:
        UsageError: nothing was exchanged.
    """
    transfers = list(map(_transfers, steps))
    known = _measurements(transfers)
    if not known:
        raise UsageError("the traced steps exchange no data: there is nothing to change")
    of_kind_s: dict[Kind, float] = defaultdict(float)
    for one in known:
        of_kind_s[one.algorithm, one.size, one.message_bytes] += one.time_s
    main = max(of_kind_s, key=lambda kind: of_kind_s[kind])
    if _tells_lengths(known):
        halves = [fit(half) for half in map(_measurements, (transfers[::2], transfers[1::2]))
                  if _tells_lengths(half)]  # fmt: skip
        byte_s = sorted(rates.time_s(work(*main)) - rates.time_s(work(*main[:2], 0))
                        for rates in halves)  # fmt: skip
        if len(byte_s) == 2 and 0 < byte_s[1] <= _AGREE * byte_s[0]:
            return Network((_line(fit(known), main),), one_length=False)
    messages = work(*main[:2], 0).messages
    lines = tuple(
        _line(_with_latency(known, latency_s / messages), main)
        for latency_s in (0.0, most_latency_s)
    )
    return Network(lines, one_length=not _tells_lengths(known))


def _transfers(step: JobStep) -> list[tuple[Kind, float]]:
    """What each exchange of a step took, in their order."""
    recorded = take_apart(step)
    return [
        (
            (algorithm_of(exchange), exchange.size, exchange.message_bytes),
            statistics.fmean(moved.transfer_s),
        )
        for exchange, moved in zip(recorded.exchanges, recorded.moved, strict=True)
    ]


def _measurements(steps: Sequence[Sequence[tuple[Kind, float]]]) -> list[Measurement]:
    """One for each exchange: what those of its kind took."""
    # Those that overlap share the link, each differently: by their place in a step.
    by_place: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for step in steps:
        for place, (kind, time_s) in enumerate(step):
            if kind[-1]:
                by_place[kind, place].append(time_s)
    medians_s: dict[Kind, list[float]] = defaultdict(list)
    for (kind, _), found in by_place.items():
        medians_s[kind] += [statistics.median(found)] * len(found)
    times_s = {kind: statistics.fmean(found) for kind, found in medians_s.items()}
    return [
        Measurement(*kind, time_s)
        for kind, time_s in times_s.items()
        for _ in medians_s[kind]
        if time_s > 0
    ]


def _tells_lengths(known: Sequence[Measurement]) -> bool:
    lengths = [one.message_bytes for one in known]
    return bool(lengths) and max(lengths) >= _SPAN * min(lengths)


def _with_latency(known: Sequence[Measurement], message_s: float) -> Rates:
    """At most that latency of a message; all that it does not explain are bytes."""
    works = [work(one.algorithm, one.size, one.message_bytes) for one in known]
    messages = sum(one.messages for one in works)
    total_s = sum(one.time_s for one in known)
    message_s = min(message_s, total_s / messages)
    rest_s = max(0.0, total_s - message_s * messages)
    return Rates(message_s, rest_s / sum(one.sent_bytes for one in works), 0.0)


def _line(rates: Rates, kind: Kind) -> Line:
    empty_s = rates.time_s(work(*kind[:2], 0))
    return Line(rates, empty_s, rates.time_s(work(*kind[:2], 1)) - empty_s)
