"""Device memory: allocations of this process, and those of others that it has opened.

As on a GPU, small allocations share a block, a handle is that of the whole block, what is new
is not zero, and what is not open may not be touched.
"""

from __future__ import annotations

import ctypes
import threading

from testbed.cuda_stand_in.errors import CUDARuntimeError
from testbed.cuda_stand_in.shared import Shared

BLOCK_BYTES = 2 << 20
MOST_OPEN = 64  # a bound of ours: CUDA's is where its memory for mappings ends
_ALIGNED_BYTES = 512
_lock = threading.Lock()


class _Opened:
    def __init__(self, block: Shared) -> None:
        self.block, self.times = block, 0


_allocated: dict[int, tuple[int, Shared]] = {}  # by address: length, and the block it lies in
_opened: dict[bytes, _Opened] = {}
_adopted: dict[int, int] = {}  # length, by address
_filling: Shared | None = None  # the block that small allocations come from
_filled_bytes = 0


def malloc(size_bytes: int) -> int:
    """The address of new memory."""
    global _filling, _filled_bytes
    with _lock:
        if size_bytes >= BLOCK_BYTES:
            block, offset_bytes = Shared.make(size_bytes), 0
        else:
            taken = max(1, -(-size_bytes // _ALIGNED_BYTES)) * _ALIGNED_BYTES
            if _filling is None or _filled_bytes + taken > BLOCK_BYTES:
                _filling, _filled_bytes = Shared.make(BLOCK_BYTES), _ALIGNED_BYTES
            block, offset_bytes = _filling, _filled_bytes
            _filled_bytes += taken
        address = block.address + offset_bytes
        _allocated[address] = (size_bytes, block)
    ctypes.memset(address, 0xAB, size_bytes)
    return address


def get_handle(address: int) -> bytes:
    """The handle of the block that an allocation of this process lies in."""
    if address not in _allocated:
        raise CUDARuntimeError("cudaErrorInvalidValue")
    return _allocated[address][1].handle


def open_handle(handle: bytes) -> int:
    """Where a block of another process begins here; to be closed as often as opened."""
    with _lock:
        if handle not in _opened:
            block = Shared(handle)
            if block.ours:
                raise CUDARuntimeError("cudaErrorDeviceUninitialized")
            if len(_opened) >= MOST_OPEN:
                raise CUDARuntimeError("cudaErrorMapBufferObjectFailed")
            _opened[handle] = _Opened(block)
        _opened[handle].times += 1
        return _opened[handle].block.address


def close_handle(address: int) -> None:
    """Take back one opening of the block that begins at an address."""
    with _lock:
        for handle, opened in _opened.items():
            if opened.block.address == address:
                opened.times -= 1
                if not opened.times:
                    del _opened[handle]
                return
    raise CUDARuntimeError("cudaErrorInvalidValue")


def adopt(address: int, size_bytes: int) -> None:
    """Take memory for the device's that something else has allocated, until it is disowned."""
    with _lock:
        _adopted[address] = size_bytes


def disown(address: int) -> None:
    """Refuse memory from now on that was adopted, as whoever allocated it frees it."""
    with _lock:
        _adopted.pop(address, None)


def count_open() -> int:
    """How many blocks of other processes are open."""
    return len(_opened)


def check(address: int, size_bytes: int) -> None:
    """Refuse memory that is neither allocated here nor open nor adopted."""
    with _lock:
        places = [(begin, length) for begin, (length, _) in _allocated.items()]
        places += [(o.block.address, o.block.size_bytes) for o in _opened.values()]
        places += _adopted.items()
    if not any(b <= address and address + size_bytes <= b + length for b, length in places):
        raise CUDARuntimeError("cudaErrorIllegalAddress")
