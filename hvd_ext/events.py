"""Events of hvd_ext: exchanges, regions of the program's time, cache look-ups.

Exchanges are passed to listeners, plain callables in this process. A recorder that was
preloaded into the process (a library exporting what `recorder` looks for) receives everything, so
a recording needs no change to the program and no import.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from hvd_ext.errors import UsageError

Operation = Literal[
    "allreduce", "reduce_scatter", "allgather", "bcast", "alltoall", "barrier", "halo"
]
Kind = Literal["compute", "communication", "io", "other"]
# The order is that of the recorder's enum region_kind.
KINDS: tuple[Kind, ...] = ("compute", "communication", "io", "other")


@dataclass(frozen=True, slots=True)
class CommEvent:
    """One exchange, seen from this rank.

    Attributes:
        operation: named as MPI's are, or "halo" for the boundaries of a spatially split layer.
        algorithm: its algorithm: "hierarchical", "ring", "native", ...
        message_bytes: payload of this rank.
        size: number of ranks that took part.
        start_s: when this rank entered, on the monotonic clock (time.monotonic).
        wait_s: time spent waiting for the other ranks to arrive.
        transfer_s: time spent moving and reducing, after all had arrived.
        ready_s: when this rank's data was ready, on the same clock; None if that is not known.
    """

    operation: Operation
    algorithm: str
    message_bytes: int
    size: int
    start_s: float
    wait_s: float
    transfer_s: float
    ready_s: float | None = None


@functools.cache
def recorder() -> Any:
    """Return the recorder that was preloaded into this process, or None.

    If it is of another version and lacks a function, a line says so.
    """
    text, number, count = ctypes.c_char_p, ctypes.c_double, ctypes.c_uint64
    integer, ranks = ctypes.c_int, ctypes.POINTER(ctypes.c_int)
    place = ctypes.c_uint32
    try:
        library: Any = ctypes.CDLL(None)
        _ = library.hvprof_begin
    except (AttributeError, OSError):
        return None
    try:
        for name, argtypes in (
            ("begin", [integer, integer, text]),
            ("end", [number]),
            ("group", [count, integer, integer, text, ranks]),
            ("collective_begins", [text, integer]),
            ("wait_begins", [text, integer, place, count, integer]),
            ("named_wait_begins", [text, text, integer, place, count, number, integer, ranks]),
            ("submitted", [place]),
            ("wait_ends", []),
            ("collective", [text, text, integer, place, count, number, number]),
            ("called_at", [text, text, integer, number]),
            ("exchange", [text, text, count, integer, *[number] * 4]),
            ("region_begin", [text, integer]),
            ("region_end", []),
            ("step", []),
            ("step_ended", []),
            ("cache", [text, integer]),
            ("tuning_begin", []),
            ("tuning_end", []),
        ):
            function = getattr(library, f"hvprof_{name}")
            function.argtypes, function.restype = argtypes, None
        library.hvprof_rank_file.argtypes, library.hvprof_rank_file.restype = [], text
        library.hvprof_group.restype, library.hvprof_collective_begins.restype = integer, place
        library.held_up_ns = count.in_dll(library, "hvprof_handed_over_ns")
    except (AttributeError, ValueError) as error:
        print(
            "hvprof: hvd_ext and torch.distributed are not recorded: the preloaded recorder is of "
            f"another version than hvd_ext ({error}); run make env or pip install . again, or "
            "record with the hvprof of the environment of the ranks",
            file=sys.stderr,
        )
        return None
    return library


Listener = Callable[[CommEvent], None]


def _to_recorder(event: CommEvent) -> None:
    recorder().hvprof_exchange(
        event.operation.encode(),
        event.algorithm.encode(),
        event.message_bytes,
        event.size,
        event.start_s,
        event.wait_s,
        event.transfer_s,
        event.ready_s or 0.0,
    )


# One list for the life of the process, because C reads it, too.
LISTENERS: list[Listener] = [] if recorder() is None else [_to_recorder]
# Whether anything listens to events; code with many short exchanges may ask first. Not a Python
# function, which would take a tenth of the shortest exchange.
listening: Callable[[], int] = LISTENERS.__len__


def listen(listener: Listener) -> Callable[[], None]:
    """Call `listener` with every CommEvent.

    Args:
        listener: takes the event; it runs on the thread that made the exchange, and should be
            quick.

    Returns:
        A function without arguments that ends the calls.
    """
    LISTENERS.append(listener)
    return lambda: LISTENERS.remove(listener)


# Called at each `hvprof.step()` of a recorded process.
MARKED_STEP: list[Callable[[], None]] = []


def emit(event: CommEvent) -> None:
    """Pass an event to the preloaded recorder, if any, and to every listener."""
    for listener in tuple(LISTENERS):
        listener(event)


def cache_lookup(cache: str, *, hit: bool) -> None:
    """Count a look-up in a cache of registered memory; only a recorder sees it.

    Args:
        cache: its name in a recording, at most 63 bytes; one cache of each process is counted.
        hit: whether the entry was in the cache.
    """
    found = recorder()
    if found is not None:
        found.hvprof_cache(cache.encode(), hit)


@contextmanager
def tuning() -> Iterator[None]:
    """Return a context whose exchanges, on all threads, only measure.

    A recorder counts them separately from the program's data.
    """
    found = recorder()
    if found is None:
        yield
        return
    found.hvprof_tuning_begin()
    try:
        yield
    finally:
        found.hvprof_tuning_end()


# Hooks are many (one for each gradient), and reading the clock twice takes as long as some of them.
_HOOKS_TIMED_EVERY, _FIRST_TIMED = 16, 4


def times_hooks(step: int) -> bool:
    """Whether the time of hooks is recorded in a step: in few steps, and not in the first one."""
    return step % _HOOKS_TIMED_EVERY == _FIRST_TIMED and recorder() is not None


class HandingOver:
    """Return a context in which a hook passes a gradient on, in a step that `times_hooks`.

    A recorder sums the times of a step's hooks, which are too many to be regions.
    """

    __slots__ = ("_began_ns",)

    def __enter__(self) -> None:
        self._began_ns = time.perf_counter_ns()

    def __exit__(self, *raised: object) -> None:
        recorder().held_up_ns.value += time.perf_counter_ns() - self._began_ns


_NO_REGION: AbstractContextManager[None] = nullcontext()


def region(name: str, kind: Kind = "compute") -> AbstractContextManager[None]:
    """Return a context whose time is recorded under a name; it does nothing without a recorder.

    Regions may be nested; each moment of a step counts for the innermost one. A region of kind
    "communication" within another one of that kind is part of it, and is not recorded separately.

    Args:
        name: at most 47 bytes of it are kept.
        kind: "compute"; "communication" while the thread is blocked on it; "io"; or "other".

    Raises:
        UsageError: an unknown kind.
    """
    if kind not in KINDS:
        raise UsageError(f"invalid kind of region {kind!r}: use one of {', '.join(KINDS)}")
    found = recorder()
    return _NO_REGION if found is None else _Region(found, name, KINDS.index(kind))


class _Region:
    def __init__(self, recorder: ctypes.CDLL, name: str, kind: int) -> None:
        self._recorder, self._name, self._kind = recorder, name.encode(errors="replace"), kind

    def __enter__(self) -> None:
        self._recorder.hvprof_region_begin(self._name, self._kind)

    def __exit__(self, *_: object) -> None:
        self._recorder.hvprof_region_end()
