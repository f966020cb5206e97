"""Tests here are skipped, with the reason, without a GPU to run them on."""

from __future__ import annotations

import ctypes
import functools
import importlib.util

import pytest


@functools.cache
def gpus() -> int:
    """CUDA devices of this machine, as the driver counts them."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


@pytest.fixture(autouse=True)
def _on_a_gpu() -> None:
    if not gpus():
        pytest.skip("no CUDA device on this machine")
    absent = [name for name in ("cupy", "torch", "mpi4py") if not importlib.util.find_spec(name)]
    if absent:
        pytest.skip(f"no {' and no '.join(absent)} in this Python")
