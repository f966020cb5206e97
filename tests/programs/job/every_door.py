"""Every collective behind every door, on hosts with other numbers of ranks: as one process has it.

One argument: "horovod", or "without" where Horovod is hidden. Prints "ok RANK".
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.torch as hvd
from hvd_ext.c10d import attach, fsdp
from hvd_ext.errors import NotInstalledError
from hvd_ext.torch import horovods
from tests.support.optimizer.learning import Net, batch

torch.set_num_threads(1)
RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
# One element, an odd number of them, and several pieces.
COUNTS = (1, 1_003, 400_007)


def numbers(rank: int, count: int) -> torch.Tensor:
    """Whole numbers, which add up without rounding."""
    return torch.arange(count, dtype=torch.float32) % 97 + 3 * rank


def check(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert torch.equal(found, expected), f"rank {RANK}: {what} is wrong"


def every(count: int) -> list[torch.Tensor]:
    return [numbers(rank, count) for rank in range(SIZE)]


def of_torch(group: Any) -> None:
    """The backend of torch.distributed."""
    for count in COUNTS:
        own, theirs = numbers(RANK, count), every(count)
        total, rows = sum(theirs), torch.cat(theirs)
        whole = numbers(RANK, count * SIZE)
        summed_rows = sum(every(count * SIZE)).chunk(SIZE)
        reduced = own.clone()
        dist.all_reduce(reduced, group=group)
        check(reduced, total, "all_reduce")
        low = own.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN, group=group)
        check(low, torch.stack(theirs).amin(0), "all_reduce with MIN")
        gathered = torch.empty(count * SIZE)
        dist.all_gather_single(gathered, own, group=group)
        check(gathered, rows, "all_gather_single")
        parts = list(torch.empty(count * SIZE).chunk(SIZE))
        dist.all_gather(parts, own, group=group)
        check(torch.cat(parts), rows, "all_gather")
        row = torch.empty(count)
        dist.reduce_scatter_single(row, whole, group=group)
        check(row, summed_rows[RANK], "reduce_scatter")
        given = torch.empty(count * SIZE)
        dist.all_to_all_single(given, whole, group=group)
        expected = [numbers(rank, count * SIZE).chunk(SIZE)[RANK] for rank in range(SIZE)]
        check(given, torch.cat(expected), "all_to_all")
        for root in range(SIZE):
            sent = own.clone()
            dist.broadcast(sent, root, group=group)
            check(sent, theirs[root], "broadcast")
            to_root = own.clone()
            dist.reduce(to_root, root, group=group)
            check(to_root, total if root == RANK else own, "reduce")
            lists = [torch.empty(count) for _ in range(SIZE)] if root == RANK else None
            dist.gather(own, lists, root, group=group)
            check(torch.cat(lists or theirs), rows, "gather")
            dist.scatter(row, list(rows.chunk(SIZE)) if root == RANK else None, root, group=group)
            check(row, own, "scatter")
        uneven = [count * (peer + 1) % 5_003 for peer in range(SIZE)]
        taken = torch.empty(uneven[RANK] * SIZE)
        dist.all_to_all_single(
            taken, numbers(RANK, sum(uneven)), [uneven[RANK]] * SIZE, uneven, group=group
        )
        expected = [numbers(rank, sum(uneven)).split(uneven)[RANK] for rank in range(SIZE)]
        check(taken, torch.cat(expected), "all_to_all of uneven parts")
        following, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
        message = dist.isend(own, following, group=group)
        received = torch.empty(count)
        dist.recv(received, before, group=group)
        message.wait()
        check(received, theirs[before], "recv")
    dist.barrier(group=group)


def trained(wrap: Callable[[torch.nn.Module], Any], done: Callable[[Any], None]) -> list[Any]:
    """The weights after some steps."""
    torch.manual_seed(3)
    model = wrap(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        x, target = batch(step, RANK)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()
    done(model)
    return [getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for p in model.parameters()]


def by_one_process() -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        optimizer.zero_grad()
        for rank in range(SIZE):
            x, target = batch(step, rank)
            (torch.nn.functional.mse_loss(model(x), target) / SIZE).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def near(found: list[Any], what: str) -> None:
    expected = by_one_process()
    for mine, right in zip(found, expected, strict=True):
        assert torch.allclose(mine, right, atol=1e-5), f"rank {RANK}: {what} differs"


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    for layer in (model.hidden, model.out, model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (SIZE,)))
    fsdp.use(model)
    return model


def attached(model: torch.nn.Module) -> Any:
    wrapped = DistributedDataParallel(model)
    attach(wrapped)
    return wrapped


def of_horovod() -> None:
    """Horovod's interface, the planned exchange, and the optimizer."""
    hvd.init()
    for count in COUNTS:
        own, theirs = numbers(RANK, count), every(count)
        total, rows = sum(theirs), torch.cat(theirs)
        check(hvd.allreduce(own, op=hvd.Sum, name=f"a{count}"), total, "hvd.allreduce")
        check(hvd.allgather(own, name=f"g{count}"), rows, "hvd.allgather")
        for root in range(SIZE):
            sent = hvd.broadcast(own, root, name=f"b{count}.{root}")
            check(sent, theirs[root], "hvd.broadcast")
        row = hvd.reducescatter(numbers(RANK, count * SIZE), op=hvd.Sum, name=f"r{count}")
        check(row, sum(every(count * SIZE)).chunk(SIZE)[RANK], "hvd.reducescatter")
        given = hvd.alltoall(numbers(RANK, count * SIZE), name=f"t{count}")
        expected = [numbers(rank, count * SIZE).chunk(SIZE)[RANK] for rank in range(SIZE)]
        check(given[0] if isinstance(given, tuple) else given, torch.cat(expected), "hvd.alltoall")
        planned = own.clone()
        hvd.plan_allreduce(planned, hvd.Sum)()
        check(planned, total, "plan_allreduce")
    torch.manual_seed(3)
    model = Net()
    try:
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters()
        )
    except NotInstalledError:  # on every rank, or the others would wait in vain
        assert not horovods.INSTALLED
        hvd.shutdown()
        return
    hvd.broadcast_parameters(model.state_dict(), root_rank=SIZE - 1)
    for step in range(4):
        x, target = batch(step, RANK)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()
    near([p.detach() for p in model.parameters()], "DistributedOptimizer")
    hvd.shutdown()


assert (sys.argv[1] == "horovod") == horovods.INSTALLED, sys.argv
dist.init_process_group("hvd_ext", init_method="mpi://", timeout=timedelta(minutes=2))
of_torch(dist.group.WORLD)
others = [rank for rank in range(SIZE) if rank != 1]
part = dist.new_group(others)
if RANK in others:
    found = numbers(RANK, 70_001)
    dist.all_reduce(found, group=part)
    check(found, sum(numbers(rank, 70_001) for rank in others), "all_reduce of some ranks")
near(trained(sharded, lambda _: None), "FSDP2")
near(trained(attached, lambda _: None), "attach")
of_horovod()
assert np.all(MPI.COMM_WORLD.allgather(RANK) == np.arange(SIZE))
print(f"ok {RANK}", flush=True)
dist.destroy_process_group()
