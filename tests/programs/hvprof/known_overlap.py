"""A step whose exchange another thread makes, while this one computes and then waits for it.

How long the exchange takes is up to the other ranks' coming late. Prints what the report is
to say, by clocks of its own.
"""

from __future__ import annotations

import threading
import time

import numpy as np
from mpi4py import MPI

import hvprof

STEPS = 4
# Seconds: of computing on rank 0, and until the last rank comes to the exchange.
COMPUTE_S, EXCHANGE_S = 0.1, 0.16


def main() -> None:
    world = MPI.COMM_WORLD
    leads = world.rank == 0
    spans: list[tuple[float, float]] = []

    def exchange() -> None:
        begin = time.monotonic()
        world.Allreduce(MPI.IN_PLACE, np.ones(1000, np.float32))
        spans.append((begin, time.monotonic()))

    hidden = exposed = 0.0
    world.Barrier()
    hvprof.step()
    for _ in range(STEPS):
        with hvprof.region("read", kind="io"):
            time.sleep(0.02)
        thread = threading.Thread(target=exchange)
        if leads:
            thread.start()
        with hvprof.region("backward"):
            time.sleep(COMPUTE_S if leads else EXCHANGE_S)
        waits_from = time.monotonic()
        if not leads:
            thread.start()
        with hvprof.region("exposed", kind="communication"):
            thread.join()
        waits_to = time.monotonic()
        begin, end = spans.pop()
        hidden += max(0.0, min(end, waits_from) - begin)
        exposed += waits_to - waits_from
        time.sleep(0.01)
        waits_from = time.monotonic()
        world.Barrier()
        exposed += time.monotonic() - waits_from
        hvprof.step()
    if leads:
        print(f"overlap {100 * hidden / (hidden + exposed)}")


if __name__ == "__main__":
    main()
