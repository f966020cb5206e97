"""Scales of charts: the positions of values, and the ticks of the axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale: its quantity, the text of a tick, and the base if it is logarithmic."""

    title: str
    form: Format
    base: int | None = None


@dataclass(frozen=True, slots=True)
class Linear:
    """Values from `low` to `high` as places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1)
        return self.start + (self.end - self.start) * share

    def ticks(self) -> list[float]:
        span = (self.high - self.low) or 1
        raw = span / 4
        power = 10 ** math.floor(math.log10(raw))
        step = next(
            power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999
        )
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Log:
    """The same values by their logarithms; `base` is the base of the ticks."""

    low: float
    high: float
    start: float
    end: float
    base: int

    def __call__(self, value: float) -> float:
        # A value not above 0 lies at the edge of this axis.
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * share

    def ticks(self) -> list[float]:
        """Powers of the base, or a finer division if these are few."""
        ticks = self._powers(self.base, (1,))
        if len(ticks) >= 4:
            return ticks
        return self._powers(10, (1, 2, 5)) if self.base == 10 else self._powers(2, (1,))

    def _powers(self, base: int, factors: Sequence[int]) -> list[float]:
        first = math.floor(math.log(self.low, base))
        powers = range(first, math.ceil(math.log(self.high, base)) + 1)
        ticks = [factor * float(base) ** power for power in powers for factor in factors]
        return [tick for tick in ticks if self.low <= tick <= self.high]


def scale_of(axis: Axis, values: Sequence[float], start: float, end: float) -> Linear | Log:
    """The scale of an axis that shows all values; a linear one begins at 0."""
    if axis.base is None:
        return Linear(0, max(values, default=0) or 1, start, end)
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    return Log(low / 1.3, high * 1.3, start, end, axis.base)
