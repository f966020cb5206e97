"""Ranks that ask in different orders, for different things, or not at all."""

from __future__ import annotations

import time

import pytest
import torch

from hvd_ext.errors import NotInstalledError
from tests.support.launch.launching import WITHOUT_HOROVOD

pytestmark = pytest.mark.ranks(pytest.param(2, marks=pytest.mark.long), 3, env=WITHOUT_HOROVOD)


def test_ranks_may_ask_in_different_orders(hvd):
    size, rank = hvd.size(), hvd.rank()
    draw = torch.Generator().manual_seed(rank)
    for attempt in range(5):
        names = [f"{attempt}.{i}" for i in torch.randperm(20, generator=draw).tolist()]
        handles = {
            name: hvd.allreduce_async(
                torch.full((3,), float(name.split(".")[1])), name=name, op=hvd.Sum
            )
            for name in names
        }
        for name in reversed(names):
            expected = size * float(name.split(".")[1])
            assert hvd.synchronize(handles[name]).tolist() == [expected] * 3


def test_a_rank_may_come_later(hvd):
    handle = None
    if hvd.rank() > 0:
        handle = hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum)
        time.sleep(0.3)
        assert not hvd.poll(handle)
    hvd.barrier()
    if handle is None:
        handle = hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [hvd.size()] * 2


def different(hvd, what):
    """A call that differs between ranks, and what the error says of it."""
    rank = hvd.rank()
    tensor = torch.ones(4 + rank, 3)
    return {
        "shape": lambda: hvd.allreduce(tensor, name="x"),
        "type": lambda: hvd.allreduce(torch.ones(3).to([torch.int32, torch.float32][rank > 0])),
        "op": lambda: hvd.allreduce(torch.ones(3), op=[hvd.Sum, hvd.Min][rank > 0]),
        "prescale_factor": lambda: hvd.allreduce(torch.ones(3), prescale_factor=1.0 + rank),
        "kind": lambda: (hvd.allgather if rank else hvd.allreduce)(torch.ones(3), name="y"),
        "shape of a row": lambda: hvd.allgather(torch.ones(3, 2 + rank)),
        "root_rank": lambda: hvd.broadcast(torch.ones(3), root_rank=rank % 2),
        "the ranks are": lambda: hvd.broadcast(torch.ones(3), root_rank=hvd.size()),
        "without dimensions": lambda: hvd.allgather(torch.tensor(1.0)),
        "add up to": lambda: hvd.alltoall(tensor, [9] * hvd.size()),
        "one integer for each": lambda: hvd.alltoall(tensor, [1.0] * hvd.size()),
        "rows for": lambda: hvd.alltoall(torch.ones(hvd.size() + 1)),
    }[what]


ARGUMENTS = ("the ranks are", "without dimensions", "add up to", "one integer for each", "rows for")
DIFFERENCES = ("shape", "type", "op", "prescale_factor", "kind", "shape of a row", "root_rank")


@pytest.mark.parametrize("what", [*DIFFERENCES, *ARGUMENTS])
def test_a_difference_is_an_error_on_every_rank_and_the_next_call_works(hvd, what):
    with pytest.raises(hvd.HorovodInternalError, match=what) as raised:
        different(hvd, what)()
    # What one rank can know is wrong is a ValueError besides, as Horovod has it.
    assert isinstance(raised.value, ValueError) == (what in ARGUMENTS)
    assert len(str(raised.value).splitlines()) == 1
    assert raised.value.exit_code == 76
    texts = hvd.allgather_object(str(raised.value))
    assert len(set(texts)) == 1


def test_a_name_is_used_once_at_a_time(hvd):
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="waits for others", op=hvd.Sum)
        with pytest.raises(ValueError, match="while another of this name"):
            hvd.allreduce_async(torch.ones(2), name="waits for others", op=hvd.Sum)
    hvd.barrier()
    if hvd.rank() > 0:
        handle = hvd.allreduce_async(torch.ones(2), name="waits for others", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [hvd.size()] * 2


def test_tensors_that_cannot_be_exchanged_are_refused(hvd):
    for tensor, words in (
        (torch.ones(4, 4).t(), "contiguous"),
        (torch.ones(3).to_sparse(), "dense"),
        (torch.ones(3, dtype=torch.complex64), "complex64"),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.allreduce(tensor)
    with pytest.raises(NotInstalledError, match="tensor on meta needs Horovod"):
        hvd.broadcast(torch.ones(3, device="meta"), 0)
    with pytest.raises(ValueError, match="op=17"):
        hvd.allreduce(torch.ones(3), op=17)


REFUSED = {
    "hvd.ProcessSet": lambda hvd: hvd.ProcessSet([0]),
    "hvd.add_process_set": lambda hvd: hvd.add_process_set([0, 1]),
    "hvd.remove_process_set": lambda hvd: hvd.remove_process_set(hvd.global_process_set),
    "process_set=": lambda hvd: hvd.allreduce(torch.ones(1), process_set=object()),
    "hvd.start_timeline": lambda hvd: hvd.start_timeline("/tmp/timeline.json"),
    "hvd.stop_timeline": lambda hvd: hvd.stop_timeline(),
    "hvd.elastic.run": lambda hvd: hvd.elastic.run(lambda state: None),
    "hvd.allreduce\\(op=hvd.Adasum": lambda hvd: hvd.allreduce(torch.ones(1), op=hvd.Adasum),
    "this DistributedOptimizer \\(the arena reduces": lambda hvd: optimizer(hvd, op=hvd.Min),
    "hvd.init\\(process_sets": lambda hvd: hvd.init(process_sets="dynamic"),
}


def optimizer(hvd, **arguments):
    parameters = [torch.nn.Parameter(torch.ones(2))]
    return hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), **arguments)


@pytest.mark.parametrize("what", REFUSED)
def test_what_only_horovod_serves_is_refused_by_name_with_what_to_do(hvd, what):
    with pytest.raises(NotInstalledError, match=f"{what}.*: install Horovod as ") as raised:
        REFUSED[what](hvd)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["HOROVOD_ELASTIC", "HOROVOD_AUTOTUNE", "HOROVOD_TIMELINE"])
def test_variables_that_ask_for_horovods_are_refused(hvd, monkeypatch, name):
    monkeypatch.setenv(name, "0")
    hvd.init()
    monkeypatch.setenv(name, "1")
    with pytest.raises(NotInstalledError, match=f"{name}=1 needs Horovod"):
        hvd.init()


def test_a_rank_that_has_joined_takes_part_with_zeros(hvd):
    size, rank = hvd.size(), hvd.rank()
    for step in range(rank + 2):
        result = hvd.allreduce(torch.ones(3, dtype=torch.float16), name=str(step), op=hvd.Sum)
        # Rank r takes r + 2 steps.
        assert result.tolist() == [sum(r + 2 > step for r in range(size))] * 3
    group = [torch.ones(2), torch.ones(3, dtype=torch.int64)]
    if rank == size - 1:
        assert hvd.grouped_allreduce(group, op=hvd.Sum)[1].tolist() == [1] * 3
        with pytest.raises(hvd.HorovodInternalError, match=r"called hvd\.join\(\)"):
            hvd.allgather(torch.ones(2))
    assert hvd.join() == size - 1
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size


def test_join_returns_the_rank_that_came_last(hvd, comm):
    """Even where that is rank 0, which hears nothing while it has nothing to do."""

    def join_after_the_others(last):
        if hvd.rank() == last:
            for _ in range(hvd.size() - 1):
                comm.recv()
            time.sleep(0.2)
        else:
            comm.send(None, dest=last)
        return hvd.join()

    # On a busy machine a rank may be stopped just before its join.
    for last in range(hvd.size()):
        assert any(join_after_the_others(last) == last for _ in range(5))


def test_collectives_that_nobody_waits_for_end_with_the_job(comm, hvd):
    for name in "abc":
        hvd.allreduce_async(torch.ones(3), name=f"not waited for {name}", op=hvd.Sum)
    comm.Barrier()  # one that leaves before others have asked fails them, as with Horovod
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_it_can_be_ended_and_started_again(hvd):
    hvd.shutdown()
    assert not hvd.is_initialized()
    for call in (hvd.rank, hvd.barrier, lambda: hvd.allreduce(torch.ones(1))):
        with pytest.raises(ValueError, match=r"call hvd\.init\(\) first"):
            call()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    hvd.shutdown()
    from mpi4py import MPI

    hvd.init(MPI.COMM_WORLD)  # an mpi4py communicator, as Horovod takes it
    assert hvd.size() == MPI.COMM_WORLD.size
    hvd.shutdown()
    with pytest.raises(NotInstalledError, match="of some ranks only"):
        hvd.init([0])
    hvd.init(list(range(MPI.COMM_WORLD.size)))
