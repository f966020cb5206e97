"""Device memory and events that the processes of a node share by CUDA IPC.

CuPy's runtime is used, which works in torch's context. Memory is plain (cudaMalloc), because
handles need that, and is never freed: CUDA does not define what happens to memory that a peer still
has open. It is reused instead, and peers find its handle in their cache.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hvd_ext.arena.cuda.handle_cache import HandleCache
from hvd_ext.shm.regions import WindowError

# A handle opens the whole block that contains the memory: no other memory may be in it.
_BLOCK_BYTES = 2 << 20
_MOST_IDLE = 16
# cudaEventDisableTiming | cudaEventInterprocess: peers cannot wait for an event that is timed.
_EVENT_FLAGS = 0x02 | 0x04

Handles = tuple[bytes, tuple[bytes, ...]]
# Device, bytes, address and handle of memory that is exported and not in use. The handle is
# requested once: peers recognize the memory by the handle's bytes.
_idle: list[tuple[int, int, int, bytes]] = []


@contextmanager
def or_window_error(what: str) -> Iterator[None]:
    """Turn any error of CuPy, CUDA or the driver into a WindowError that gives it as the reason.

    Raises:
        WindowError: in place of any other error.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise WindowError(
            f"{what}: {error}: pip install cupy-cuda13x, or the one for your CUDA"
        ) from error
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise WindowError(f"{what}: {first}") from error


def settle(device: int) -> None:
    """Wait until all work that was queued on a device has ended.

    Once every rank has done so, no peer's kernel writes to memory of an arena that is gone.

    Raises:
        WindowError: CuPy or the device is missing.
    """
    with or_window_error(f"device memory of GPU {device} that others can open"):
        import cupy

        with cupy.cuda.Device(device):
            cupy.cuda.runtime.deviceSynchronize()


class Exported:
    """This rank's memory and events.

    Attributes:
        data: the memory, a 1-D CuPy array of uint8, all zero.
        events: addresses of the events.
        handles: those by which the peers open both.
    """

    def __init__(self, device: int, data_bytes: int, events: int) -> None:
        """Make them on a device of this process, after all ranks of the node did `settle`.

        Raises:
            WindowError: CuPy, the device, memory or IPC is missing.
        """
        with or_window_error(f"device memory of GPU {device} that others can open"):
            import cupy

            runtime = cupy.cuda.runtime
            with cupy.cuda.Device(device):
                allocation = Allocation(runtime, device, data_bytes)
                runtime.memset(allocation.address, 0, data_bytes)
                runtime.deviceSynchronize()
                memory = cupy.cuda.UnownedMemory(allocation.address, data_bytes, allocation, device)
                self.data = cupy.ndarray(
                    (data_bytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0)
                )
                self.address = allocation.address
                # Events stay until the process ends, as a peer may have them open.
                self.events = [runtime.eventCreateWithFlags(_EVENT_FLAGS) for _ in range(events)]
                self.handles: Handles = (
                    allocation.handle,
                    tuple(runtime.ipcGetEventHandle(event) for event in self.events),
                )


class Opened:
    """A peer's memory and events.

    Attributes:
        address: where its memory begins in this process.
        events: addresses of its events.
    """

    def __init__(self, device: int, handles: Handles) -> None:
        """Open a peer's memory and events for a device of this process.

        Raises:
            WindowError: this process may not, or the device reaches no peer's.
        """
        memory, events = handles
        key = (device, memory)
        self.events: list[int] = []
        with or_window_error(f"memory of another process, from GPU {device}"):
            import cupy

            runtime = cupy.cuda.runtime
            _, self.address = _opened.lease(key)
            # Runs when it is called, or when nothing refers to this object any more.
            self.close = weakref.finalize(self, _close_opened, runtime, self.events, key)
            self.close.atexit = False  # by then the driver may be gone
            try:
                with cupy.cuda.Device(device):
                    for event in events:
                        self.events.append(runtime.ipcOpenEventHandle(event))
            except BaseException:
                self.close()
                raise


class Allocation:
    """Memory that becomes idle, and is reused, when nothing refers to it any more."""

    def __init__(self, runtime: Any, device: int, need_bytes: int) -> None:
        need_bytes = max(1, -(-need_bytes // _BLOCK_BYTES)) * _BLOCK_BYTES
        fitting = [p for p in _idle if p[0] == device and need_bytes <= p[1] <= 2 * need_bytes]
        if fitting:
            place = min(fitting)
            _idle.remove(place)
        else:
            address = runtime.malloc(need_bytes)
            place = (device, need_bytes, address, runtime.ipcGetMemHandle(address))
        self.address, self.handle = place[2:]
        weakref.finalize(self, _idle.append, place)


def _close_opened(runtime: Any, events: list[int], key: tuple[int, bytes]) -> None:
    while events:
        runtime.eventDestroy(events.pop())
    _opened.release(key)


def _open_memory(key: tuple[int, bytes]) -> tuple[int, int]:
    import cupy

    device, handle = key
    with cupy.cuda.Device(device):
        return device, cupy.cuda.runtime.ipcOpenMemHandle(handle)


def _close_memory(place: tuple[int, int]) -> None:
    import cupy

    # This may run on a thread that uses another GPU, or none.
    device, address = place
    with cupy.cuda.Device(device):
        # A kernel of hvd_ext may still run there.
        cupy.cuda.runtime.deviceSynchronize()
        cupy.cuda.runtime.ipcCloseMemHandle(address)


_opened = HandleCache(_open_memory, _close_memory, _MOST_IDLE)
