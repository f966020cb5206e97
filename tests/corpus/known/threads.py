"""Each rank computes with four threads."""

import hashlib
import queue
import threading

import numpy as np
from mpi4py import MPI

comm, data, block = MPI.COMM_WORLD, np.zeros(100), bytes(8_000_000)
tasks: queue.Queue[int] = queue.Queue()


def work() -> None:
    while True:
        tasks.get()
        hashlib.sha256(block).digest()
        tasks.task_done()


for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
for _ in range(25):
    for part in range(4):
        tasks.put(part)
    tasks.join()
    comm.Allreduce(MPI.IN_PLACE, data)
