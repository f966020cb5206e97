"""The number of ranks at which splitting a batch stops paying, and the reason.

Four limits (Keuper and Pfreundt, MLHPC 2016): a rank cannot have less than one sample; the
exchange takes longer than the compute that could hide it; the step is at its shortest; the
efficiency falls below the requested one. The first limit that is reached rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hvprof.analysis.limits.step_time import StepModel, StepTime

BATCH, EXCHANGE, FASTEST, EFFICIENCY = "batch", "exchange", "fastest", "efficiency"
# A model that has reached no limit by now will not reach one.
_MOST_RANKS = 2.0**20
_FINE_RANKS, _COARSE = 256, 1.02
_HALVINGS = 60
# If several limits coincide (without overlap: half the efficiency, and an exchange as long as
# compute), the first name is reported.
_SAME = 1.01


@dataclass(frozen=True, slots=True)
class Stop:
    """A limit: its name, how many ranks meet it, and their step; None if it is never met."""

    name: str
    ranks: float | None
    step: StepTime | None


def stops(model: StepModel, batch_known: bool, efficiency: float) -> tuple[Stop, ...]:
    """Compute the four limits of a model.

    Args:
        model: model of the step.
        batch_known: whether its batch counts samples.
        efficiency: the requested one, above 0 and below 1.
    """
    most = max(model.batch, model.base_ranks) if batch_known else _MOST_RANKS
    met = {
        BATCH: model.batch if batch_known else None,
        EXCHANGE: crossing(model),
        FASTEST: _fastest(model, most),
        EFFICIENCY: _first(lambda ranks: model.efficiency(ranks) < efficiency, model),
    }
    return tuple(
        Stop(name, ranks, None if ranks is None else model.strong(ranks))
        for name, ranks in met.items()
    )


def ruling(found: tuple[Stop, ...]) -> Stop | None:
    """Return the limit that is reached first; None if none is."""
    met = [stop for stop in found if stop.ranks is not None]
    if not met:
        return None
    least = min(stop.ranks for stop in met if stop.ranks is not None)
    return next(stop for stop in met if stop.ranks is not None and stop.ranks <= least * _SAME)


def crossing(model: StepModel) -> float | None:
    """Return the number of ranks from which the exchange takes longer than compute."""

    def longer(ranks: float) -> bool:
        step = model.strong(ranks)
        return step.exchange_s >= step.compute_s

    return _first(longer, model)


def _fastest(model: StepModel, most: float) -> float | None:
    """Return the number of ranks of the shortest step; None if more are always faster."""
    tried = [*_numbers(model.base_ranks, most), most]
    best = min(tried, key=lambda ranks: model.strong(ranks).time_s)
    return None if best >= most else best


def _first(holds: Callable[[float], bool], model: StepModel) -> float | None:
    """Return, by bisection, the number of ranks from which a condition holds."""
    low = float(model.base_ranks)
    if holds(low):
        return low
    for high in _numbers(model.base_ranks, _MOST_RANKS):
        if holds(high):
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                low, high = (low, middle) if holds(middle) else (middle, high)
            return high
        low = high
    return None


def _numbers(least: int, most: float) -> Iterator[float]:
    """Return numbers of ranks to try: all small ones, then some, and every power of two."""
    fine = range(least, min(_FINE_RANKS, int(most)) + 1)
    coarse, ranks = [], float(_FINE_RANKS)
    while ranks < most:
        coarse.append(float(int(ranks)))
        ranks *= _COARSE
    powers = itertools.takewhile(lambda power: power < most, (2.0**n for n in itertools.count(8)))
    yield from map(float, fine)
    yield from sorted({n for n in (*coarse, *powers) if n >= max(least, _FINE_RANKS)})
