"""DDP on emulated hosts: gradients are equal on all ranks, and right, in each format."""

from __future__ import annotations

import sys

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

import hvd_ext.c10d
from tests.support.c10d.models import Weighted, flat, gradients_of, wrap

dist.init_process_group("gloo", init_method="mpi://")
torch.set_num_threads(1)
comm = MPI.COMM_WORLD
for compression, tolerance in (("none", 1e-6), ("bf16", 0.05), ("int8", 0.2)):
    model = wrap(Weighted(), gradient_as_bucket_view=True)
    exchange = hvd_ext.c10d.attach(model, compression)
    for step in range(6):
        model.zero_grad()
        model(gradients_of(comm.rank, step)).backward()
        got = flat(model)
        assert len(set(comm.allgather(got.numpy().tobytes()))) == 1, (compression, step)
        everyones = [gradients_of(rank, step) for rank in range(comm.size)]
        want = np.mean([torch.cat([g.ravel() for g in each]).numpy() for each in everyones], axis=0)
        wrong = np.abs(got.view(torch.float32).numpy() - want).max()
        assert wrong < tolerance, (compression, step, wrong)
    text = exchange.explain()
    assert "reduced where they lie" in text, text
    assert (compression if compression != "none" else "between nodes") in text, text
dist.destroy_process_group()
print(f"ok {comm.rank}", file=sys.stdout, flush=True)
