"""Sum an array over all ranks again and again: planned once, next to mpi4py's own allreduce.

Run it: hvd-launch run -np 2 -- python examples/planned_allreduce.py
"""

import time
from functools import partial

import numpy as np
import torch
from mpi4py import MPI

import hvd_ext.torch as hvd

CALLS = 200

hvd.init()
comm = MPI.COMM_WORLD
for count in (256, 65536, 1 << 20):
    tensor = torch.ones(count)
    plan = hvd.plan_allreduce(tensor, op=hvd.Sum)  # collective; nothing is negotiated later
    array, total = np.ones(count, np.float32), np.empty(count, np.float32)

    cases = {
        "planned": (partial(tensor.fill_, 1), plan),
        "mpi4py": (partial(array.fill, 1), partial(comm.Allreduce, array, total)),
    }
    shown = []
    for name, (fill, call) in cases.items():
        comm.Barrier()
        began = time.perf_counter()
        for _ in range(CALLS):
            fill()
            call()
        shown.append(f"{name} {1e6 * (time.perf_counter() - began) / CALLS:.1f} us")
    assert tensor.eq(hvd.size()).all()
    assert (total == hvd.size()).all()
    if hvd.rank() == 0:
        print(f"{4 * count:>8} bytes: {', '.join(shown)}")
