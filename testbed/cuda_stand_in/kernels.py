"""Kernels: CUDA's source, compiled by g++, and run thread by thread on a stream."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from testbed.cuda_stand_in import memory, streams
from testbed.cuda_stand_in.arrays import ndarray
from testbed.cuda_stand_in.errors import CUDARuntimeError

_ON_HOST = Path(__file__).with_name("on_host.cpp")
_VECTOR_BYTES = 16
# As at every optimisation, but no product and sum at once, which would round once.
_OPTIONS = ["-O1", "-ffp-contract=off", "-shared", "-fPIC"]


@functools.cache
def compile_for_host(code: str, compiler: str = "g++") -> ctypes.CDLL:
    """A library of the kernels in a source, with `run` to run one of them."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernels.cu").write_text(code, encoding="utf-8")
        library = Path(folder) / "kernels.so"
        command = [compiler, *_OPTIONS, f"-I{folder}", str(_ON_HOST), "-o", str(library)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(library))


class RawModule:
    """The kernels of a source."""

    def __init__(self, *, code: str) -> None:
        self._code = code

    def compile(self) -> None:
        self._library = compile_for_host(self._code)

    def get_function(self, name: str) -> Kernel | Mover:
        return Mover(self._library) if name == "move" else Kernel(self._library, name)


def _queue() -> streams.Queue:
    """That of the thread's stream, which must be one of the thread's device."""
    queue = streams.queue_of(streams.current_stream())
    streams.check_device(queue.device)
    if queue.device != streams.current_device():
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle")
    return queue


class Mover:
    """move.cu's kernel."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._function = ctypes.cast(library.move, ctypes.c_void_p)

    def __call__(
        self, grid: tuple[int], block: tuple[int], arguments: tuple[ndarray, np.int32]
    ) -> None:
        """Launch it on the thread's stream."""
        table, each = arguments
        assert table.dtype == np.uint64, arguments
        assert isinstance(each, np.int32), arguments

        def check() -> None:
            memory.check(table.data.ptr, table.nbytes)
            words = (ctypes.c_uint64 * (table.nbytes // 8)).from_address(table.data.ptr)
            for source, target, count, unit, *dims in np.array(words).reshape(table.shape).tolist():
                half = len(dims) // 2
                along = zip(dims[:half], dims[half:], strict=True)
                memory.check(source, unit + sum((length - 1) * step for length, step in along))
                memory.check(target, count * unit)

        def run() -> None:
            check()
            self._library.run_move(
                self._function,
                *(ctypes.c_uint(grid[0]), ctypes.c_uint(block[0])),
                *(ctypes.c_void_p(table.data.ptr), ctypes.c_int(int(each))),
            )
            check()  # nothing was closed or freed meanwhile

        _queue().put(run)


class Kernel:
    """A kernel with the arguments of reduce.cu's."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._library = library
        self._function = ctypes.cast(getattr(library, name), ctypes.c_void_p)

    def __call__(
        self,
        grid: tuple[int],
        block: tuple[int],
        arguments: tuple[ndarray, np.int32, ndarray, np.int32, np.uint64, np.uint64, np.float32],
    ) -> None:
        """Launch it on the thread's stream, which must be one of the thread's device.

        CuPy passes arguments on as they are: a kernel takes one of another type for
        something else.
        """
        addresses, ranks, into, intos, first, count, scale = arguments
        types = [a.dtype if isinstance(a, ndarray) else type(a) for a in arguments]
        table = [np.uint64, np.int32]
        assert types == [*table, *table, np.uint64, np.uint64, np.float32], types
        queue = _queue()

        def run() -> None:
            for each in (addresses, into):
                memory.check(each.data.ptr, each.nbytes)
            parts = (ctypes.c_uint64 * int(ranks)).from_address(addresses.data.ptr)
            outs = (ctypes.c_uint64 * int(intos)).from_address(into.data.ptr)

            def check() -> None:
                for part in (*parts, *outs):
                    begin, length = (int(n) * _VECTOR_BYTES for n in (first, count))
                    memory.check(part + begin, length)

            check()
            self._library.run(
                self._function,
                *(ctypes.c_uint(grid[0]), ctypes.c_uint(block[0])),
                *(parts, ctypes.c_int(int(ranks)), outs, ctypes.c_int(int(intos))),
                *map(ctypes.c_uint64, (int(first), int(count))),
                ctypes.c_float(float(scale)),
            )
            check()  # nothing was closed meanwhile

        queue.put(run)
