"""`recorded_traffic.py PART [BACKEND]`: calls of torch.distributed of known bytes.

PART is one of
    calls: each collective, and messages, on all ranks and on a group of rank 0
    ddp: 5 steps of DDP with several buckets
    fsdp: 5 steps of FSDP2
    fsdp_used: the same, which hvd_ext serves
    marked: the steps of DDP, marked by the program
    failing: one call fails, and the next one succeeds
    late, late_in_backward, deadlock: ranks hang
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hvprof

FLOATS, STEPS, WIDTH = 1000, 5, 256


def calls() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    one = torch.ones(FLOATS)
    whole = torch.ones(size * FLOATS)
    rows = [torch.empty(FLOATS) for _ in range(size)]
    dist.all_reduce(one)
    dist.all_reduce(one, async_op=True).wait()
    dist.broadcast(one, 0)
    dist.reduce(one, 0)
    dist.all_gather(rows, one)
    dist.all_gather_into_tensor(whole, one)
    dist.reduce_scatter_tensor(one, whole)
    dist.all_to_all_single(torch.empty_like(whole), whole)
    dist.gather(one, rows if rank == 0 else None, 0)
    dist.scatter(one, rows if rank == 0 else None, 0)
    dist.barrier()
    if rank == 0:
        dist.send(one, 1)
    elif rank == 1:
        dist.recv(one, 0)
    alone = dist.new_group([0])
    if rank == 0:
        dist.all_reduce(one, group=alone)


def train(model: torch.nn.Module, *, marks: bool = False) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(4, WIDTH)).sum().backward()
        optimizer.step()
        if marks:
            hvprof.step()


def layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))


def ddp(*, marks: bool = False) -> None:
    mib = WIDTH * WIDTH * 4 / 2**20
    train(DistributedDataParallel(layers(), bucket_cap_mb=mib), marks=marks)


def fsdp(*, used: bool = False) -> None:
    model = layers()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    if used:
        importlib.import_module("hvd_ext.c10d.fsdp").use(model)
    train(model)


def fsdp_used() -> None:
    fsdp(used=True)


def late() -> None:
    dist.all_reduce(torch.ones(FLOATS))
    if dist.get_rank() == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(FLOATS))


def late_in_backward() -> None:
    model = DistributedDataParallel(layers(), bucket_cap_mb=WIDTH * WIDTH * 4 / 2**20)
    for step in range(3):  # DDP rebuilds its buckets in the second
        if step == 2 and dist.get_rank() == 1:
            time.sleep(600)
        model(torch.ones(4, WIDTH)).sum().backward()


def deadlock() -> None:
    dist.recv(torch.ones(FLOATS), 1 - dist.get_rank())


def failing() -> None:
    with contextlib.suppress(RuntimeError, ValueError):
        dist.all_reduce(torch.ones(FLOATS), op=dist.ReduceOp.BAND)
        raise AssertionError("Gloo has this reduction now: choose another one")
    dist.all_reduce(torch.ones(FLOATS))


def main() -> None:
    if "hvd_ext" in sys.argv:
        importlib.import_module("hvd_ext.c10d")
    dist.init_process_group(*sys.argv[2:] or ["gloo"])
    part = sys.argv[1]
    ddp(marks=True) if part == "marked" else globals()[part]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
