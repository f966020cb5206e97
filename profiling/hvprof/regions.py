"""Regions and steps: what a program says of itself, where hvprof records it.

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

import ctypes
import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from hvd_ext.errors import UsageError

Kind = Literal["compute", "communication", "io", "other"]
# The order is that of enum region_kind in ledger.h.
KINDS: tuple[Kind, ...] = ("compute", "communication", "io", "other")

_NOTHING: AbstractContextManager[None] = nullcontext()


def region(name: str, kind: Kind = "compute") -> AbstractContextManager[None]:
    """A context whose time is recorded under a name.

    Regions may lie in each other; of a step's time, each moment goes to the innermost one.

    Args:
        name: at most 47 bytes of it are kept.
        kind: "compute"; "communication" while the thread stands still for it; "io"; or
            "other".

    Raises:
        UsageError: an unknown kind.
    """
    if kind not in KINDS:
        raise UsageError(f"a region's kind is {kind!r}: use one of {', '.join(KINDS)}")
    recorder = _recorder()
    return _NOTHING if recorder is None else _Region(recorder, name, KINDS.index(kind))


def step() -> None:
    """End a training step here, and begin the next one.

    The first step begins where the thread first enters a region or calls this.
    """
    recorder = _recorder()
    if recorder is not None:
        recorder.hvprof_step()


def watch_exchange(optimizer: Any) -> None:
    """Record how long `optimizer.synchronize()` stands still, as communication.

    It is what a DistributedOptimizer's `step()` waits in, Horovod's as well as hvd_ext's.
    An optimizer without it (of a job of one rank) is left as it is, as are all where
    nothing is recorded.
    """
    synchronize = getattr(optimizer, "synchronize", None)
    if synchronize is None or _recorder() is None:
        return

    @functools.wraps(synchronize)
    def watched() -> None:
        with region("synchronize", kind="communication"):
            synchronize()

    optimizer.synchronize = watched


class _Region:
    def __init__(self, recorder: ctypes.CDLL, name: str, kind: int) -> None:
        self._recorder, self._name, self._kind = recorder, name.encode(errors="replace"), kind

    def __enter__(self) -> None:
        self._recorder.hvprof_region_begin(self._name, self._kind)

    def __exit__(self, *_: object) -> None:
        self._recorder.hvprof_region_end()


@functools.cache
def _recorder() -> Any:
    """The recorder that was preloaded into this process, or None."""
    try:
        library = ctypes.CDLL(None)
        library.hvprof_region_begin.argtypes = [ctypes.c_char_p, ctypes.c_int]
        library.hvprof_region_end.argtypes = []
        library.hvprof_step.argtypes = []
    except (AttributeError, OSError):
        return None
    for function in (library.hvprof_region_begin, library.hvprof_region_end, library.hvprof_step):
        function.restype = None
    return library
