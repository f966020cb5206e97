"""`under_torchrun.py PART`: ranks that torchrun started, without MPI, do what MPI's ranks do."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d
from hvd_ext.c10d import fsdp
from hvd_ext.errors import HvdExtError, StallError
from tests.support.c10d.models import train

FROM_2_14 = torch.__version__ >= "2.14"


def hook() -> None:
    """DDP's gradients are Gloo's to the bit, in memory that the ranks share."""
    dist.init_process_group("gloo")

    def looked_at(exchange: hvd_ext.c10d.Exchange, model: object) -> None:
        assert "reduced where they lie" in exchange.explain(), exchange.explain()

    for options in ({}, {"gradient_as_bucket_view": True}):
        want, got = train(False, **options), train(True, looked_at=looked_at, **options)
        assert all(map(torch.equal, want, got))
    assert [losses(used) for used in (True, False)] == [losses(False)] * 2


def device() -> None:
    """DDP's gradients on GPUs, of the stand-in, which prove themselves over the store."""
    from hvd_ext.arena.cuda import self_check
    from tests.support.c10d.device_ddp import on_device

    dist.init_process_group("gloo")
    want = train(False)
    check = self_check.check
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self_check, "check", lambda *given: check(*given, rounds=3))
        on_device(patch, dist.get_rank(), proved=False)
        said: list[str] = []
        got = train(True, looked_at=lambda exchange, _: said.append(exchange.explain()))
        assert "CUDA IPC" in said[0], said
        assert all(map(torch.equal, want, got))


def losses(used: bool) -> list[float]:
    """Of FSDP2, with or without hvd_ext."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.Tanh(), torch.nn.Linear(33, 5))
    fully_shard(model)
    if used:
        fsdp.use(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.manual_seed(dist.get_rank())
    seen = []
    for _ in range(4):
        loss = model(torch.randn(6, 7)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert not used or any(placed is not None for placed in fsdp._placed.values())
    return seen


def backend() -> None:
    """Collectives, messages, groups; again after the group's end."""
    dist.init_process_group("hvd_ext")
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.full((500_000,), float(rank))
    dist.all_reduce(total)
    assert total.unique().tolist() == [sum(range(size))]
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": r} for r in range(size)]
    other, own = torch.empty(3, 400_000).t(), torch.full((400_000, 3), rank + 0.5)
    works = [dist.isend(own, 1 - rank, tag=5), dist.irecv(other, 1 - rank, tag=5)]
    works[1].get_future().wait()
    for work in works:
        work.wait()
        # PyTorch's own handle, from 2.14 on, never is, and knows no source either.
        assert work.is_completed() or FROM_2_14
    assert other.unique().tolist() == [1 - rank + 0.5]
    if rank == 0:
        dist.send(torch.arange(4), 1)
    else:
        found = torch.empty(4, dtype=torch.int64)
        assert dist.recv(found, src=0 if FROM_2_14 else None) == 0
        assert found.tolist() == [0, 1, 2, 3]
    said, compared = "", dist.new_group()
    try:
        dist.all_reduce(torch.ones(3 + rank), group=compared)
    except RuntimeError as error:
        said = str(error)
    # The second is PyTorch's, where it compares the ranks.
    assert "all_reduce() of 12 bytes" in said or "Detected mismatch" in said, said
    groups = [dist.new_group([r]) for r in range(size)] + [dist.new_group()]
    for group in (groups[rank], groups[-1]):
        dist.barrier(group)
        dist.destroy_process_group(group)
    for options in ({}, {"gradient_as_bucket_view": True}):
        assert all(map(torch.equal, train(False, **options), train(True, **options)))


def asked() -> None:
    """Messages that were asked for and never came: the program ends as it should."""
    dist.init_process_group("hvd_ext")
    peer = 1 - dist.get_rank()
    never = dist.irecv(torch.zeros(3), peer, tag=1)
    assert not never.is_completed()
    found = [torch.zeros(3) for _ in range(200)]
    works = [dist.irecv(one, peer) for one in found]
    assert not any(work.is_completed() for work in works)
    assert threading.active_count() < 10, threading.enumerate()
    for number in range(200):
        dist.send(torch.full((3,), float(number)), peer)
    for number, work in enumerate(works):
        work.wait()
        assert found[number].tolist() == [number] * 3
    with pytest.raises(
        StallError, match=rf"the send\(\) that rank {1 - peer} waits for within 1 s"
    ):
        never.wait(timedelta(seconds=1))
    dist.barrier()
    print("done", flush=True)
    sys.exit(0)


def until_it_fails(begin: Callable[[torch.Tensor, int], object], peer: int) -> None:
    while True:
        begin(torch.zeros(3), peer)
        time.sleep(0.1)


def left() -> None:
    """A rank of three has left: messages with it name it, and another group's end is clean."""
    dist.init_process_group("hvd_ext")
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    if rank == 1:
        dist.destroy_process_group()
    elif rank == 2:
        store.wait(["over"], timedelta(seconds=60))
    else:
        for begin in (dist.irecv, dist.isend):
            name = begin.__name__.removeprefix("i")
            with pytest.raises(HvdExtError, match=rf"^{name}\(\) with rank 1 \("):
                until_it_fails(begin, 1)
        never = dist.irecv(torch.zeros(3), 2)
        assert not never.is_completed()
        dist.destroy_process_group()
        store.set("over", "")
    print("done", flush=True)
    sys.exit(0)


def again() -> None:
    """Ranks that torchrun starts again meet nothing of their earlier lives; the fourth ends."""
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("hvd_ext")
    rank = dist.get_rank()
    for step in range(4):
        total = torch.full((100,), float(rank + step + life))
        dist.all_reduce(total)
        assert total.unique().tolist() == [2 * (step + life) + 1]
        if life < 3 and step == life and rank == life % 2:
            os.kill(os.getpid(), signal.SIGKILL)


def late() -> None:
    """A rank that does not come is named."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        time.sleep(60)
    attach()


def rendezvous() -> None:
    """MPI has no ranks to give."""
    dist.init_process_group("gloo", init_method="mpi://")


def attach() -> None:
    hvd_ext.c10d.attach(DistributedDataParallel(torch.nn.Linear(2, 2), init_sync=False))


PARTS = {
    part.__name__: part for part in (hook, device, backend, asked, left, again, late, rendezvous)
}
torch.set_num_threads(1)
try:
    PARTS[sys.argv[1]]()
except HvdExtError as error:
    print(f"error: {error}", flush=True)
    sys.exit(error.exit_code)
dist.destroy_process_group()
assert sys.modules["mpi4py"] is None
print("done", flush=True)
