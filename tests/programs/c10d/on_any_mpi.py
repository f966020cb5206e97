"""torch.distributed on whatever MPI this is: collectives, messages and DDP, exact on 2 ranks.

PyTorch is in the folder that HVD_EXT_TEST_TORCH names, as the environments of the other MPI
libraries have none.
"""

from __future__ import annotations

import os
import sys

sys.path.append(os.environ["HVD_EXT_TEST_TORCH"])

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d

dist.init_process_group("hvd_ext", init_method="mpi://")
rank, size = dist.get_rank(), dist.get_world_size()
assert size == 2


def check_collectives(group: dist.ProcessGroup) -> None:
    for count in (1, 1000, 300_001):
        values = torch.arange(count) % 11
        summed = values * (rank + 1)
        dist.all_reduce(summed, group=group)
        assert torch.equal(summed, values * 3)
        given = values.clone() if rank == 1 else torch.zeros_like(values)
        dist.broadcast(given, 1, group=group)
        assert torch.equal(given, values)
        gathered = [torch.empty_like(values) for _ in range(2)]
        dist.all_gather(gathered, values + rank, group=group)
        assert torch.equal(torch.stack(gathered), torch.stack([values, values + 1]))
        received = torch.empty_like(values)
        works = [
            dist.isend(values - rank, 1 - rank, group=group),
            dist.irecv(received, 1 - rank, group=group),
        ]
        for work in works:
            work.wait()
        assert torch.equal(received, values - (1 - rank))


def gradients(group: dist.ProcessGroup, attach: bool) -> list[torch.Tensor]:
    """Return the gradients of the second step; the first step lays out DDP's buckets."""
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(30, 70), torch.nn.ReLU(), torch.nn.Linear(70, 5))
    model = DistributedDataParallel(network, process_group=group, gradient_as_bucket_view=True)
    if attach:
        hvd_ext.c10d.attach(model)
    torch.manual_seed(rank)
    for _ in range(2):
        model.zero_grad()
        model(torch.randn(8, 30)).square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


world = dist.group.WORLD
assert world is not None
check_collectives(world)
check_collectives(dist.new_group())
gloo = dist.new_group(backend="gloo")
theirs = gradients(gloo, attach=False)
for group, attach in ((world, False), (world, True), (gloo, True)):
    ours = gradients(group, attach)
    assert len(ours) == len(theirs) == 4
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
dist.barrier()
dist.destroy_process_group()
os.write(1, b"all is exact\n")
