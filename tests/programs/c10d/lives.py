"""`lives.py PART [HOW]`: process groups that end and begin again in three processes.

Without MPI the parent keeps the store, as a supervisor of such jobs does; `by-mpi`: rank 0 of MPI.
PyTorch may be in the folder that HVD_EXT_TEST_TORCH names, as in `on_any_mpi.py`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path += filter(None, [os.environ.get("HVD_EXT_TEST_TORCH")])

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d
from hvd_ext.errors import HvdExtError

SIZE, LIVES, SETTLED = 3, 100, 20
LOOPBACK = "127.0.0.1"


def begin(store: Any, name: str, rank: int, size: int, timeout_s: float = 60) -> None:
    """Make the default group over its own part of the store."""
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group(
        "hvd_ext", store=PrefixStore(name, store), rank=rank, world_size=size, timeout=limit
    )


def use() -> None:
    """A collective of each kind of group, a message, and a DDP model."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.full((5000,), float(rank))
    dist.all_reduce(total)
    assert total.unique().tolist() == [sum(range(size))]
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(total, group=pair)
        assert total.unique().tolist() == [2.0 * sum(range(size))]
        found = torch.zeros(3)
        work = dist.isend(torch.full((3,), float(rank)), 1 - rank)
        dist.recv(found, 1 - rank)
        work.wait()
        assert found.unique().tolist() == [1.0 - rank]
    model = DistributedDataParallel(torch.nn.Linear(5, 1, bias=False))
    hvd_ext.c10d.attach(model)
    model(torch.full((1, 5), float(rank))).backward()
    (weight,) = model.parameters()
    assert weight.grad is not None
    assert torch.allclose(weight.grad, torch.tensor(sum(range(size)) / size))


def held() -> dict[str, int]:
    """Threads, descriptors, mappings and memory of this process, shared memory included."""
    own = Path("/proc/self")
    pages = {
        line.split()[0]: int(line.split()[1]) for line in (own / "status").open() if "kB" in line
    }
    return {
        "MiB of memory": (pages["RssAnon:"] + pages["RssShmem:"]) // 1024,
        "threads": len(list((own / "task").iterdir())),
        "threads of Python": threading.active_count(),
        "descriptors": len(list((own / "fd").iterdir())),
        "mappings": len((own / "maps").read_text().splitlines()),
    }


def again(store: Any, number: int) -> None:
    """100 lives, in each with other ranks, and in every third without one of the processes."""
    settled: dict[str, int] = {}
    for life in range(LIVES):
        size = SIZE - (life % 3 == 2)
        rank = (number + life) % SIZE
        if rank < size:
            begin(store, f"life {life}", rank, size)
            use()
            dist.destroy_process_group()
        if life == SETTLED:
            settled = held()
    grown = {name: count - settled[name] for name, count in held().items()}
    # The parts that are freed late may differ; what leaks, leaks 80 times.
    assert all(more < 20 for more in grown.values()), grown
    print(f"process {number} grew by {grown}", flush=True)


def without(store: Any, number: int) -> None:
    """A rank dies: the others get an error in time, and go on without it."""
    begin(store, "all", number, SIZE, timeout_s=5)
    use()
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began_s = time.monotonic()
    try:
        dist.all_reduce(torch.ones(100))
    except HvdExtError as error:
        print(f"process {number}: {error}", flush=True)
    else:
        raise AssertionError("rank 1 was not missed")
    assert time.monotonic() - began_s < 40
    dist.destroy_process_group()
    for life in range(3):
        begin(store, f"fewer {life}", number // 2, SIZE - 1)
        use()
        dist.destroy_process_group()
        time.sleep(5)  # nothing of the first group's end comes after it


def child(number: int, part: str, port: int, place: str = LOOPBACK) -> None:
    torch.set_num_threads(1)
    store = TCPStore(place, port, None, False, timedelta(seconds=60))
    {"again": again, "without": without, "refused": refused}[part](store, number)
    print("done", flush=True)


def by_mpi(part: str) -> None:
    """One of MPI's ranks. Groups number the ranks in other ways, and may have fewer."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    hosts = world.allgather(socket.gethostname())
    place = hosts[0] if len(set(hosts)) > 1 else LOOPBACK
    kept = TCPStore(place, 0, None, True, wait_for_workers=False) if world.rank == 0 else None
    port = world.bcast(kept.port if kept else 0)
    child(world.rank, part, port, place)
    world.Barrier()  # nobody needs the store any more


def refused(store: Any, number: int) -> None:
    """A rank stops: without it no group is made, because MPI cannot end without it."""
    begin(store, "all", number, SIZE, timeout_s=5)
    use()
    if number == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        dist.all_reduce(torch.ones(100))
    except HvdExtError:
        dist.destroy_process_group()
    try:
        begin(store, "fewer", number // 2, SIZE - 1)
    except HvdExtError as error:
        print(f"process {number}: {error}", flush=True)
        raise


if __name__ == "__main__" and sys.argv[2:] == ["by-mpi"]:
    by_mpi(sys.argv[1])
elif __name__ == "__main__":
    kept = TCPStore(LOOPBACK, 0, None, True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    children = [
        context.Process(target=child, args=(number, sys.argv[1], kept.port))
        for number in range(SIZE)
    ]
    for one in children:
        one.start()
    for one in children:
        one.join()
    sys.exit(any(one.exitcode not in (0, -signal.SIGKILL) for one in children))
