"""The kernels of reduce.cu, which sum several memories, compiled for one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SERVED = ("float32", "float16", "bfloat16")
VECTOR_BYTES = 16
_SOURCE = Path(__file__).with_name("reduce.cu")
_THREADS = 512
# Enough to be bound by memory, and few enough to leave room for backward.
_BLOCKS_A_MULTIPROCESSOR = 2

# The addresses of memories, in GPU memory, and their number.
Memories = tuple[Any, np.int32]


class Kernels:
    """A kernel for each of SERVED."""

    def __init__(self, device: int) -> None:
        """Compile them for the thread's GPU, `device`, before the first step."""
        import cupy

        runtime = cupy.cuda.runtime
        module = cupy.RawModule(code=_SOURCE.read_text(encoding="utf-8"))
        module.compile()
        self._kernels = {name: module.get_function(f"reduce_{name}") for name in SERVED}
        self._most_blocks = _BLOCKS_A_MULTIPROCESSOR * runtime.deviceGetAttribute(
            runtime.cudaDevAttrMultiProcessorCount, device
        )

    def sum(
        self,
        dtype: str,
        memories: tuple[Memories, Memories],
        part: tuple[int, int],
        scale: float,
        stream: Any,
    ) -> None:
        """Queue a sum.

        Args:
            dtype: one of SERVED.
            memories: memories to sum, in this order, and memories that receive the sum.
            part: its begin in each memory, and its length, in units of 16 bytes.
            scale: factor of the sum.
            stream: CuPy's, of this GPU.
        """
        (of, into), (first, count) = memories, part
        blocks = min(self._most_blocks, max(1, -(-count // _THREADS)))
        place = np.uint64(first), np.uint64(count)
        with stream:
            self._kernels[dtype]((blocks,), (_THREADS,), (*of, *into, *place, np.float32(scale)))


def on_gpu(addresses: Sequence[int]) -> Memories:
    """Copy addresses to the thread's GPU; the copy has ended after deviceSynchronize."""
    import cupy

    return cupy.asarray(addresses, dtype=np.uint64), np.int32(len(addresses))
