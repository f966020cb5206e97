"""Programs that tell what malloc does with freed memory, run in processes of their own."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ASK = """
from hvd_ext.system.freed_memory import keep_freed_memory
print(keep_freed_memory())
"""
# Page faults of a round that fills blocks of so many MiB each, all at once, and frees them.
COUNT = """
import ctypes, resource, sys
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
sizes = [int(word) << 20 for word in sys.argv[1:]]
counts = []
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(size) for size in sizes]
    for block, size in zip(blocks, sizes):
        libc.memset(block, 1, size)
    for block in reversed(blocks):
        libc.free(block)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(counts[2:]))
"""
