"""`ddp_on_gpu.py [nodes]`: DDP models on GPUs that ranks may share get the bits of the CPU.

DDP's own group is Gloo's, which takes several ranks on a GPU. With "nodes" two ranks are a node.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI

import hvd_ext.c10d
from tests.support.c10d.models import Weighted, flat, gradients_of, wrap

STEPS = 6
patch = pytest.MonkeyPatch()


def train(place: str, dtype: torch.dtype, **options) -> tuple[list[torch.Tensor], str]:
    model = wrap(Weighted(dtype).to(place), **options)
    exchange = hvd_ext.c10d.attach(model)
    seen = []
    for step in range(STEPS):
        model.zero_grad()
        gradients = gradients_of(dist.get_rank(), step, dtype)
        model([gradient.to(place) for gradient in gradients]).backward()
        seen.append(flat(model).cpu())
    said = exchange.explain()
    exchange.close()
    return seen, said


dist.init_process_group("gloo", init_method="mpi://")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
if "nodes" in sys.argv:
    from tests.support.arena.pretended_nodes import pretend

    topology = pretend(MPI.COMM_WORLD, 2)
    patch.setattr("hvd_ext.c10d.ddp.topology_of", lambda group: topology)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for options in ({}, {"gradient_as_bucket_view": True}):
        want, _ = train("cpu", dtype, **options)
        got, said = train("cuda", dtype, **options)
        assert "CUDA IPC" in said, said
        assert all(map(torch.equal, got, want)), (dtype, options)
os.environ["HVD_EXT_DEVICE_ARENA"] = "0"
got, said = train("cuda", torch.float32)
assert said.startswith("by DDP's own process group: HVD_EXT_DEVICE_ARENA=0"), said
print(f"ok {dist.get_rank()}", flush=True)
dist.destroy_process_group()
