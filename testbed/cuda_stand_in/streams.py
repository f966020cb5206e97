"""Streams: each is a thread that does what it is given in order, and later than it could.

Between streams there is no order but that of events. The threads stay until the process ends: a
device is waited for with all that any stream of it was given, also one that is gone.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from testbed.cuda_stand_in.errors import CUDARuntimeError

DEVICES = 2  # of every process, though a GPU has no more memory than the machine
_LATE_BY_S = 0.002  # at most, before each piece of work
_HUNG_AFTER_S = 60.0

Work = Callable[[], object]


class Queue:
    """The work of one stream.

    Attributes:
        device: whose stream it is.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self._work: SimpleQueue[Work] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, work: Work) -> None:
        self._work.put(work)

    def _run(self) -> None:
        late = random.Random()
        while True:
            work = self._work.get()
            time.sleep(late.random() * late.random() * _LATE_BY_S)
            try:
                work()
            except CUDARuntimeError as error:
                # The first error is the device's from then on.
                _errors.setdefault(self.device, error)


def synchronize(queues: Iterable[Queue]) -> None:
    """Wait for all that streams were given so far, and raise their device's error, if any."""
    reached = []
    for queue in queues:
        reached.append((queue, threading.Event()))
        queue.put(reached[-1][1].set)
    for queue, event in reached:
        if not event.wait(_HUNG_AFTER_S):
            raise CUDARuntimeError("cudaErrorLaunchTimeout")
        check_device(queue.device)


_errors: dict[int, CUDARuntimeError] = {}
_queues: dict[int, Queue] = {}  # by the stream's address; the null streams by -1 - device
_addresses = itertools.count(0x1000, 0x100)
_lock = threading.Lock()
_current = threading.local()


def check_device(device: int) -> None:
    """Raise the error that work on a device has ended with, if any."""
    if device in _errors:
        raise CUDARuntimeError(str(_errors[device]).partition(":")[0])


def forget_errors() -> None:
    """Have devices work again, which CUDA's do in a new process only."""
    _errors.clear()


def current_device() -> int:
    """The calling thread's device."""
    return getattr(_current, "device", 0)


def set_device(device: int) -> None:
    if not 0 <= device < DEVICES:
        raise CUDARuntimeError("cudaErrorInvalidDevice")
    _current.device = device


def queue_of(stream: int) -> Queue:
    """The queue of a stream; 0 is the null stream of the thread's device."""
    key = stream or -1 - current_device()
    with _lock:
        if not stream and key not in _queues:
            _queues[key] = Queue(current_device())
        if key not in _queues:
            raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
        return _queues[key]


def make_stream() -> int:
    """A stream of the thread's device that does not wait for the null stream."""
    with _lock:
        stream = next(_addresses)
        _queues[stream] = Queue(current_device())
    return stream


def synchronize_device() -> None:
    """Wait for all streams of the thread's device."""
    with _lock:
        queues = [queue for queue in _queues.values() if queue.device == current_device()]
    synchronize(queues)
    check_device(current_device())


def current_stream() -> int:
    """The stream that the calling thread launches on."""
    stack: list[int] = getattr(_current, "streams", [])
    return stack[-1] if stack else 0


def enter_stream(stream: int) -> None:
    _current.streams = [*getattr(_current, "streams", []), stream]


def leave_stream() -> None:
    _current.streams = _current.streams[:-1]
