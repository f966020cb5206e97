"""Marks regions and steps in ways that are easy to get wrong; test_steps.py knows the counts."""

from __future__ import annotations

import contextlib
import os
import threading
import time

import numpy as np

import hvprof

HOSTILE = "\x1b[31m<script>alert(1)</script>" + "ä" * 40

if __name__ == "__main__":
    # Before MPI starts there is nothing to record into.
    with hvprof.region("early"):
        hvprof.step()
        from mpi4py import MPI

    own = np.ones(1, np.float32)
    hvprof.step()
    for _ in range(3):
        with hvprof.region("outer"):
            time.sleep(0.01)
            with hvprof.region("inner", kind="io"):
                time.sleep(0.02)
        with hvprof.region(HOSTILE, kind="other"):
            pass
        thread = threading.Thread(target=lambda: hvprof.region("loader", kind="io").__enter__())
        thread.start()
        thread.join()
        hvprof.step()
    with contextlib.suppress(ValueError), hvprof.region("failing"):
        raise ValueError
    # Deeper than regions are kept apart.
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(hvprof.region("deep"))
    child = os.fork()
    if child == 0:
        with hvprof.region("outer"):
            hvprof.step()
        os._exit(0)
    os.waitpid(child, 0)
    hvprof.step()
    # More calls than a step has room to keep apart.
    for _ in range(10_000):
        MPI.COMM_SELF.Allreduce(MPI.IN_PLACE, own)
    hvprof.step()
