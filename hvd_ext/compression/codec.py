"""codec.c from Python: messages of runs of elements."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hvd_ext.allreduce.operations import Array
from hvd_ext.compression.formats import NONE, Format
from hvd_ext.errors import HvdExtError

# As codec.c's struct run.
_RUN = np.dtype([("begin", "u8"), ("count", "u8"), ("format", "i4"), ("unused", "i4")])


class Message:
    """The message of some elements of a share, planned once.

    Attributes:
        elements: their indices in the share.
        bytes: length of the message.
        codec_s: time spent in `encode` and `decode` so far.
    """

    def __init__(self, begin: int, end: int, runs: Sequence[tuple[int, int, Format]]) -> None:
        """Plan the message of the runs, or parts of runs, that are in [begin, end).

        Args:
            begin: first element in the share.
            end: index after the last element.
            runs: first element, number of elements and format of each run, ascending.
        """
        self.elements = slice(begin, end)
        cut = [
            (max(first, begin) - begin, min(first + count, end) - max(first, begin), f.number)
            for first, count, f in runs
            if first < end and first + count > begin
        ]
        self._runs = np.array([(*run, 0) for run in cut], _RUN)
        self._library = library()
        self._arguments = (self._runs.ctypes.data, len(self._runs))
        self.codec_s = 0.0
        self.bytes = int(self._library.codec_bytes(*self._arguments))

    def encode(self, x: Array, residual: Array | None, out: Array, scale: float = 1.0) -> None:
        """Encode `scale` x plus the residual, and keep the rounding error in the residual.

        Args:
            x: float32, the elements that `elements` selects.
            residual: as long as x; None only if no run has a format with a residual.
            out: receives the message, `bytes` of uint8.
            scale: factor of x.
        """
        address = None if residual is None else residual.ctypes.data
        start_s = time.perf_counter()
        self._library.codec_encode(*self._arguments, x.ctypes.data, scale, address, out.ctypes.data)
        self.codec_s += time.perf_counter() - start_s

    def decode(self, message: Array, to: Array, *, add: bool) -> None:
        """Write the elements to `to`, or add them; elements outside of all runs stay unchanged."""
        start_s = time.perf_counter()
        self._library.codec_decode(*self._arguments, message.ctypes.data, to.ctypes.data, add)
        self.codec_s += time.perf_counter() - start_s


def whole(count: int, format: Format = NONE) -> list[tuple[int, int, Format]]:
    """Return a share of `count` elements as a single run (none if it is empty)."""
    return [(0, count, format)] if count else []


@functools.cache
def library() -> ctypes.CDLL:
    """codec.c, compiled."""
    path = Path(__file__).with_name("libcodec.so")
    try:
        return declare(ctypes.CDLL(str(path)))
    except OSError as error:
        raise HvdExtError(
            f"{path.name} cannot be loaded ({error}): install hvd-ext again"
        ) from None


def declare(found: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the functions of codec.c and low_rank.h to ctypes."""
    address, count = ctypes.c_void_p, ctypes.c_uint64
    matrix = [address, address, count, count, count]
    declared: dict[str, list[Any]] = {
        "codec_encode": [address, count, address, ctypes.c_float, address, address],
        "codec_decode": [address, count, address, address, ctypes.c_int],
        "low_rank_to_right": [*matrix, address, address],
        "low_rank_to_left": [*matrix, address, address],
        "low_rank_apply": [*matrix, ctypes.c_float, address, address],
        "low_rank_orthonormalise": [address, count, count],
    }
    for name, arguments in declared.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, None
    found.codec_bytes.argtypes = [address, count]
    found.codec_bytes.restype = count
    return found
