"""DDP and the backend on emulated hosts: results are equal on all ranks, and right."""

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
# The backend: a long message goes by node, a short one by MPI itself.
group = dist.new_group(backend="hvd_ext")
for count in (1000, 300_001):
    every = [torch.full((count,), rank + 1.0) for rank in range(comm.size)]
    total = every[comm.rank].clone()
    dist.all_reduce(total, group=group)
    assert (total == sum(range(1, comm.size + 1))).all(), count
    rows = torch.empty(comm.size * count)
    dist.all_gather_single(rows, every[comm.rank], group)
    assert torch.equal(rows, torch.cat(every)), count
    part = torch.empty(count)
    dist.reduce_scatter_single(part, rows * (comm.rank + 1), group=group)
    assert torch.equal(part, every[comm.rank] * sum(range(1, comm.size + 1))), count
    dist.broadcast(part, comm.size - 1, group=group)
    assert (part == comm.size * sum(range(1, comm.size + 1))).all(), count
dist.destroy_process_group()
print(f"ok {comm.rank}", file=sys.stdout, flush=True)
