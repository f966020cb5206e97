"""Prints how many MiB a rank returns to the kernel in its first steps, of what it has freed before.

The freed memory lies below a block that stays, so that malloc's own trimming cannot return it.
"""

from __future__ import annotations

import ctypes

import torch

import hvd_ext.torch as hvd
from testbed.usage import memory_bytes

FREED_MIB, STEPS = 200, 6


def main() -> None:
    hvd.init()
    for sharded in (False, True):
        parameters = [torch.nn.Parameter(torch.ones(1000)) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=0.1),
            named_parameters=[(str(number), p) for number, p in enumerate(parameters)],
            sharded=sharded,
        )
        free_below_a_block()
        before = memory_bytes()["anonymous"]
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.stack([p.sum() for p in parameters]).sum().backward()
            optimizer.step()
        returned_mib = round((before - memory_bytes()["anonymous"]) / 2**20)
        print(f"RETURNED {returned_mib}", flush=True)


def free_below_a_block() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(1 << 20) for _ in range(FREED_MIB + 1)]
    for block in blocks:
        libc.memset(block, 1, 1 << 20)
    for block in blocks[:-1]:
        libc.free(block)


if __name__ == "__main__":
    main()
