"""Waiting by polling, with longer and longer pauses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

# Polls without a pause, so that an operation that has almost ended is not delayed by a sleep.
_LOOKS = 5
_LEAST_SLEEP_S, _MOST_SLEEP_S = 30e-6, 300e-6


def until(
    over: Callable[[], bool],
    limit_s: float = math.inf,
    *,
    looks: int = _LOOKS,
    most_sleep_s: float = _MOST_SLEEP_S,
) -> bool:
    """Poll until an operation has ended; returns whether it ended within the limit.

    Args:
        over: whether it has ended.
        limit_s: time limit, after which there is at most one more poll.
        looks: number of polls without a pause.
        most_sleep_s: the longest pause.
    """
    for _ in range(looks):
        if over():
            return True
    deadline, sleep_s = time.monotonic() + limit_s, _LEAST_SLEEP_S
    while not over():
        if time.monotonic() > deadline:
            return False
        time.sleep(sleep_s)
        sleep_s = min(2 * sleep_s, most_sleep_s)
    return True


class Request(Protocol):
    """A request that receives an object, such as mpi4py's."""

    def test(self) -> tuple[bool, Any]: ...


def message(
    request: Request,
    within_s: float,
    most_sleep_s: float = _MOST_SLEEP_S,
    has_left: Callable[[], bool] = lambda: False,
) -> tuple[bool, Any]:
    """Wait for a request; returns whether it ended in time, and the object that it received.

    Once `has_left` says that the partner is gone, it is not waited for.
    """
    found: tuple[bool, Any] = False, None

    def over() -> bool:
        nonlocal found
        left = has_left()  # asked first: all its earlier messages are here then
        found = request.test()
        return left or found[0]

    until(over, within_s, most_sleep_s=most_sleep_s)
    return found
