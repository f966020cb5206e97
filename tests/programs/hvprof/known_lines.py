"""Calls MPI from lines that are marked with what they call, and how often."""

from __future__ import annotations

import threading

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
OTHER = WORLD.Dup()  # comm_dup 1


class Solver:
    def step(self) -> None:
        for value in range(3):
            WORLD.allgather(value)  # allgather 15


def meet_often() -> None:
    for _ in range(40):
        OTHER.Barrier()  # barrier 40


solver = Solver()
for _ in range(5):
    solver.step()
    WORLD.Barrier()  # barrier 5
if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
    thread = threading.Thread(target=meet_often)
    thread.start()
    for _ in range(30):
        (lambda: WORLD.Barrier())()  # barrier 30
    thread.join()
