"""Thousands of mixed allreduces on three communicators from two threads: memory stays flat.

Argument: how many. One thread has two communicators and the windows; the other has the
third, and calls that it starts and waits for. Every result is checked.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import psutil
from mpi4py import MPI

from hvd_ext.allreduce.algorithms import ALGORITHMS
from hvd_ext.allreduce.operations import OPERATIONS
from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.job.topology import discover

CALLS = int(sys.argv[1])
ALLOWED_BYTES = 8 << 20

world = MPI.COMM_WORLD
first, second, third = (discover(world, 30.0) for _ in range(3))
rank, size = world.rank, world.size
ranks_sum = size * (size + 1) // 2
failures: list[str] = []


def expect(buffer: np.ndarray, what: str) -> None:
    if not (buffer == ranks_sum).all():
        failures.append(what)


def ad_hoc(topologies: list, seed: int, calls: int) -> None:
    draw = np.random.default_rng(seed)  # the same on every rank
    memory = {np.dtype(t): np.empty(70_000, t) for t in (np.float32, np.float64, np.int32)}
    for number in range(calls):
        topology = topologies[number % len(topologies)]
        dtype = list(memory)[int(draw.integers(len(memory)))]
        count = int(2 ** draw.uniform(0, 16))
        name = sorted(ALGORITHMS)[int(draw.integers(len(ALGORITHMS)))]
        buffer = memory[dtype][:count]
        buffer.fill(rank + 1)
        prepare(name, topology.world, buffer, OPERATIONS["sum"])()
        expect(buffer, f"{name} {dtype} {count}")


def planned(calls: int) -> None:
    plans = [
        PersistentAllreduce.in_arena(first, 40_000, "float32"),
        PersistentAllreduce(first, np.empty(1000), algorithm="shared_memory"),
        PersistentAllreduce(first, np.empty(50_000, np.int64), algorithm="ring"),
    ]
    for number in range(calls):
        plan = plans[number % len(plans)]
        plan.buffer.fill(rank + 1)
        if number % 5:
            plan()
        else:
            plan.start()
            plan.wait()
        expect(plan.buffer, f"plan {number % len(plans)}")


def rounds(calls: int, seed: int) -> None:
    """Half of the calls on each thread."""
    other = threading.Thread(target=ad_hoc, args=([third], seed, calls // 2))
    other.start()
    ad_hoc([first, second], seed + 1, calls // 4)
    planned(calls // 4)
    other.join()
    assert not failures, failures[:5]


# The MPI library's pools fill up first, ever more slowly: of 60,000 calls at 2 ranks the
# first third added 8 MiB, the second 3, the last 1.
for part in range(5):
    rounds(CALLS // 10, 10 * part)
before = psutil.Process().memory_info().rss
for part in range(5, 10):
    rounds(CALLS // 10, 10 * part)
grown = psutil.Process().memory_info().rss - before
assert grown < ALLOWED_BYTES, f"{grown} bytes more than after half of the calls"
print(f"ok {rank}: {grown >> 10} KiB more")
