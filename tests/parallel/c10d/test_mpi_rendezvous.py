"""`init_method="mpi://"`: rank, size and store from MPI."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import hvd_ext.c10d
from hvd_ext.errors import UsageError
from tests.ranks.asserts import parallel_assert

assert hvd_ext.c10d


@pytest.mark.ranks(1, 3)
def test_ranks_are_mpis_again_and_again(comm):
    for _ in range(3):
        dist.init_process_group("gloo", init_method="mpi://")
        parallel_assert(comm, (dist.get_rank(), dist.get_world_size()) == (comm.rank, comm.size))
        total = torch.tensor([float(comm.rank)])
        dist.all_reduce(total)
        parallel_assert(comm, total.item() == sum(range(comm.size)), total)
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_another_rank_or_size_is_refused(comm):
    with pytest.raises(UsageError, match="where MPI has"):
        dist.init_process_group(
            "gloo", init_method="mpi://", rank=1 - comm.rank, world_size=comm.size
        )
    dist.init_process_group("gloo", init_method="mpi://", rank=comm.rank, world_size=comm.size)
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_store_holds_what_ranks_put_there(comm):
    dist.init_process_group("gloo", init_method="mpi://")
    everyones = [None] * comm.size
    dist.all_gather_object(everyones, {"rank": comm.rank})
    parallel_assert(comm, [e["rank"] for e in everyones] == [0, 1], everyones)
    dist.destroy_process_group()


@pytest.mark.long
def test_an_absent_rank_is_named(launch):
    done = launch(
        3,
        ["tests/programs/c10d/ddp_fault.py", "init"],
        env={"HVD_EXT_STALL_TIMEOUT_S": "3"},
        timeout=90,
    )
    assert done.returncode == 75, done.stdout
    assert "rank 2 did not reach init_process_group() within 3 s" in done.stdout
