"""Regions and steps that a program marks for hvprof.

Example:
    for batch in batches:
        with hvprof.region("load", kind="io"):
            images = read(batch)
        with hvprof.region("forward"):
            loss = model(images)
        ...
        hvprof.step()

In a process that is not recorded these calls do nothing, in less than a microsecond.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

from hvd_ext.events import MARKED_STEP, HandingOver, recorder, times_hooks
from hvd_ext.events import region as region


def get_include() -> str:
    """Return the folder of `hvprof.h` and `hvprof.f90`, for programs in C, C++ and Fortran."""
    return str(Path(__file__).resolve().with_name("include"))


def step() -> None:
    """End a training step here, and begin the next one.

    The first step begins where the thread first enters a region or calls this.
    """
    preloaded = recorder()
    if preloaded is not None:
        preloaded.hvprof_step()
        for listener in tuple(MARKED_STEP):
            listener()


def watch_exchange(optimizer: Any) -> None:
    """Record how long `optimizer.synchronize()` blocks, as the region "exposed".

    A DistributedOptimizer's `step()` waits in it. The time of Horovod's gradient hooks is recorded
    as "gradient hooks" in one step of 16. hvd_ext's optimizer records both already.

    Args:
        optimizer: unchanged if it has no `synchronize` (a job of one rank), if it is watched
            already, or if nothing is recorded.
    """
    synchronize = getattr(optimizer, "synchronize", None)
    if synchronize is None or recorder() is None or hasattr(synchronize, "watched"):
        return

    # A method of Horovod 0.28, whose hooks call it for each gradient.
    hand_over: Any = getattr(optimizer, "_allreduce_grad_async", None)
    steps = itertools.count(1)

    def timed(*args: Any, **options: Any) -> Any:
        with HandingOver():
            return hand_over(*args, **options)

    @functools.wraps(synchronize)
    def watched() -> None:
        if hand_over is not None:  # the rest is recorded as exposed already
            optimizer._allreduce_grad_async = hand_over
        with region("exposed", kind="communication"):
            synchronize()
        if hand_over is not None and times_hooks(next(steps)):
            optimizer._allreduce_grad_async = timed

    watched.watched = True  # type: ignore[attr-defined]
    optimizer.synchronize = watched
