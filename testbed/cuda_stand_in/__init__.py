"""The device arena's part of CuPy, on a CPU: `install()`, and `import cupy` gives this.

Device memory is memory that processes share, a stream is a thread that runs late, and a kernel
is its own source compiled by g++. A missing event, ticket or open handle, which is wrong on a
GPU, is wrong here too: as wrong bits, or as the error that CUDA gives. Functions and errors
have CuPy's and CUDA's names, and refuse what the documentation of CUDA's runtime refuses.

It does not show what only a GPU has: whether CUDA IPC, its events and its streams behave as
documented; caches and memory ordering of GPUs and of the links between them; threads of a
kernel that run at once; memory of a process that ended; any speed. It has no more of CuPy than
the arena and spatial exchanges use, and knows the arguments of reduce.cu's and move.cu's kernels.
"""

from __future__ import annotations

import sys

from numpy import uint8

from testbed.cuda_stand_in import cuda
from testbed.cuda_stand_in.arrays import asarray, ndarray
from testbed.cuda_stand_in.kernels import RawModule

__all__ = ["RawModule", "asarray", "cuda", "install", "ndarray", "uint8"]


def install() -> None:
    """Be CuPy in this process, until it ends: what was opened is closed by `import cupy` too."""
    sys.modules["cupy"] = sys.modules[__name__]
