"""The values of `sync=`: when nodes exchange their weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import ClassVar

from hvd_ext.errors import UsageError

EVERY_STEP, ONE_STEP_LATE = "every_step", "one_step_late"
FORMS = f"{EVERY_STEP}, {ONE_STEP_LATE}, local_sgd:steps=8, diloco:steps=100"


@dataclass(frozen=True)
class LocalSGD:
    """Each node trains by itself; after `steps` steps all continue with the mean of their weights.

    Attributes:
        steps: number of steps between two exchanges, at least 1.

    Raises:
        UsageError: a value out of its range.
    """

    steps: int
    name: ClassVar[str] = "local_sgd"
    outer_lr: ClassVar[float] = 1.0
    outer_momentum: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        _check_steps(self.name, self.steps)

    def __str__(self) -> str:
        return _as_text(self)


@dataclass(frozen=True)
class DiLoCo:
    """Each node trains by itself; after `steps` steps an outer optimizer moves the weights of all.

    It is SGD with Nesterov's momentum; its gradient is the nodes' mean weight change
    (Douillard et al., https://arxiv.org/abs/2311.08105).

    Attributes:
        steps: number of steps between two exchanges, at least 1.
        outer_lr: learning rate of the outer optimizer, above 0.
        outer_momentum: its momentum, at least 0 and less than 1.

    Raises:
        UsageError: a value out of its range.
    """

    steps: int
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    name: ClassVar[str] = "diloco"

    def __post_init__(self) -> None:
        _check_steps(self.name, self.steps)
        if not 0 < self.outer_lr < math.inf:
            raise UsageError(f"diloco: outer_lr={self.outer_lr!r}: give a number above 0")
        if not 0 <= self.outer_momentum < 1:
            raise UsageError(
                f"diloco: outer_momentum={self.outer_momentum!r}: give at least 0 and less than 1"
            )

    def __str__(self) -> str:
        return _as_text(self)


Rounds = LocalSGD | DiLoCo  # both have steps, outer_lr and outer_momentum
Schedule = Rounds | str  # or EVERY_STEP, or ONE_STEP_LATE
_KINDS: dict[str, Callable[..., Rounds]] = {"local_sgd": LocalSGD, "diloco": DiLoCo}
_OPTIONS = {"steps": int, "outer_lr": float, "outer_momentum": float}


def parse(given: Schedule) -> Schedule:
    """Return the schedule that a text names; schedules are returned unchanged.

    Raises:
        UsageError: the text names no schedule.
    """
    if isinstance(given, (LocalSGD, DiLoCo)) or given in (EVERY_STEP, ONE_STEP_LATE):
        return given
    if isinstance(given, str):
        name, _, options = given.partition(":")
        pairs = [option.partition("=")[::2] for option in options.split(",") if option]
        with suppress(KeyError, ValueError, TypeError):
            return _KINDS[name](**{key: _OPTIONS[key](value) for key, value in pairs})
    raise UsageError(f"invalid sync {given!r}: use one of {FORMS}")


def _check_steps(name: str, steps: object) -> None:
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise UsageError(f"{name}: steps={steps!r}: give a whole number of at least 1")


def _as_text(rounds: Rounds) -> str:
    values = ",".join(f"{field.name}={getattr(rounds, field.name)}" for field in fields(rounds))
    return f"{rounds.name}:{values}"
