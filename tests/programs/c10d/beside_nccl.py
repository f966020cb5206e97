"""hvd_ext serves the CPU and NCCL the GPU, in one process group."""

from __future__ import annotations

import torch
import torch.distributed as dist

import hvd_ext.c10d  # noqa: F401  registers mpi:// and the backend

dist.init_process_group("cpu:hvd_ext,cuda:nccl", init_method="mpi://")
size = dist.get_world_size()
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
for device in ("cpu", "cuda"):
    tensor = torch.arange(5.0, device=device)
    dist.all_reduce(tensor)
    assert torch.equal(tensor.cpu(), size * torch.arange(5.0)), tensor
print(f"ok {dist.get_rank()}", flush=True)
dist.destroy_process_group()
