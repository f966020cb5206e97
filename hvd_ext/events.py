"""What hvd_ext tells the world: each exchange it makes, and regions of the program's time.

Listeners are plain callables in this process. A recorder that was preloaded into
the process (a library exporting the C functions `hvprof_exchange`, `hvprof_region_begin`
and `hvprof_region_end`) is told as well, so that a recording needs no change to the
program and no import.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from hvd_ext.errors import UsageError

Kind = Literal["compute", "communication", "io", "other"]
# The order is that of the recorder's enum region_kind.
KINDS: tuple[Kind, ...] = ("compute", "communication", "io", "other")


@dataclass(frozen=True, slots=True)
class CommEvent:
    """One exchange, seen from this rank.

    Attributes:
        operation: "allreduce"; or "exposed", once a step: how long the training
            thread stood still for the exchanges of that step (in transfer_s).
        algorithm: what carried it: "hierarchical", "ring", "native", ...
        message_bytes: payload of this rank.
        size: number of ranks that took part.
        start_s: when this rank entered, on the monotonic clock (time.monotonic).
        wait_s: time spent waiting for the other ranks to arrive.
        transfer_s: time spent moving and reducing, after all had arrived.
    """

    operation: str
    algorithm: str
    message_bytes: int
    size: int
    start_s: float
    wait_s: float
    transfer_s: float


Listener = Callable[[CommEvent], None]
_listeners: list[Listener] = []


def listen(listener: Listener) -> Callable[[], None]:
    """Have `listener` called with every CommEvent; returns the call that ends it.

    It is called on the thread that made the exchange, and should be quick.
    """
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def listening() -> bool:
    """Whether anyone would hear an event; who makes many short exchanges may ask first."""
    return bool(_listeners) or _recorder() is not None


def emit(event: CommEvent) -> None:
    """Hand an event to the preloaded recorder, if any, and to every listener."""
    record = _recorder()
    if record is not None:
        record(
            event.operation.encode(),
            event.algorithm.encode(),
            event.message_bytes,
            event.size,
            event.start_s,
            event.wait_s,
            event.transfer_s,
        )
    for listener in tuple(_listeners):
        listener(event)


@functools.cache
def _recorder() -> Callable[..., None] | None:
    try:
        function = ctypes.CDLL(None).hvprof_exchange
    except (AttributeError, OSError):
        return None
    function.restype = None
    function.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_double,
        ctypes.c_double,
        ctypes.c_double,
    ]
    return function


_NO_REGION: AbstractContextManager[None] = nullcontext()


def region(name: str, kind: Kind = "compute") -> AbstractContextManager[None]:
    """A context whose time is recorded under a name; it does nothing where nothing records.

    Regions may be nested; each moment of a step counts for the innermost one.

    Args:
        name: at most 47 bytes of it are kept.
        kind: "compute"; "communication" while the thread is blocked on it; "io"; or "other".

    Raises:
        UsageError: an unknown kind.
    """
    if kind not in KINDS:
        raise UsageError(f"invalid kind of region {kind!r}: use one of {', '.join(KINDS)}")
    library = _regions()
    return _NO_REGION if library is None else _Region(library, name, KINDS.index(kind))


class _Region:
    def __init__(self, library: ctypes.CDLL, name: str, kind: int) -> None:
        self._library, self._name, self._kind = library, name.encode(errors="replace"), kind

    def __enter__(self) -> None:
        self._library.hvprof_region_begin(self._name, self._kind)

    def __exit__(self, *_: object) -> None:
        self._library.hvprof_region_end()


@functools.cache
def _regions() -> Any:
    """The recorder that was preloaded into this process, or None."""
    try:
        library = ctypes.CDLL(None)
        library.hvprof_region_begin.argtypes = [ctypes.c_char_p, ctypes.c_int]
        library.hvprof_region_end.argtypes = []
    except (AttributeError, OSError):
        return None
    library.hvprof_region_begin.restype = library.hvprof_region_end.restype = None
    return library
