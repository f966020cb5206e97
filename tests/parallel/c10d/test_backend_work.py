"""Order, messages, groups, errors and the end of the backend's process groups."""

from __future__ import annotations

import itertools
import re
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d
from hvd_ext import variables
from hvd_ext.c10d import fsdp
from hvd_ext.c10d.ranks import limit_of
from hvd_ext.errors import HvdExtError, MismatchError, StallError, UsageError
from hvd_ext.events import listen
from tests.ranks.asserts import parallel_assert
from tests.support.optimizer.learning import Net, batch

assert hvd_ext.c10d
pytestmark = [pytest.mark.usefixtures("backend"), pytest.mark.ranks(2, 3)]
# From there on torch asks a backend's work for its wait() and its future alone.
FROM_2_14 = torch.__version__ >= "2.14"
# From there on PyTorch itself refuses most sparse tensors, before the backend sees them.
NO_SPARSE = NotImplementedError if FROM_2_14 else UsageError


def test_what_is_queued_keeps_its_order(comm):
    tensors = [torch.full((n,), 1.0) for n in (1, 500_000, 3, 200_000, 7)]
    works = [dist.all_reduce(tensors[0], async_op=True)]
    for before, after in itertools.pairwise(tensors):
        works.append(dist.broadcast(before[:1], 0, async_op=True))
        works.append(dist.all_reduce(after, async_op=True))
    last = torch.ones(2)
    dist.all_reduce(last)  # after what is queued, though its caller waits
    parallel_assert(comm, all(work.get_future().done() for work in works), "overtaken")
    parallel_assert(comm, all((t == comm.size).all() for t in [*tensors, last]), tensors)
    for work in works:
        assert work.wait()
        assert work.wait(timedelta(seconds=1))
        if not FROM_2_14:
            assert work.is_completed()
            assert work.is_success()
            assert work.exception() is None


def test_futures_hold_the_tensors(comm):
    own = torch.ones(5)
    halved = dist.all_reduce(own, async_op=True).get_future().then(lambda f: f.value()[0] / 2)
    parallel_assert(comm, torch.equal(halved.wait(), torch.full((5,), comm.size / 2)), halved)


def test_a_callback_may_begin_a_collective_and_wait_for_it(comm):
    """In the order in which a rank calls it for which the first collective was over at once."""
    total = [torch.full((count,), 1.0) for count in (3, 5, 7, 9)]

    def again(tensor):
        return lambda _: dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

    ends = []
    for tensor in total:
        future = dist.all_reduce(tensor, async_op=True).get_future()
        ends.append(future.then(again(tensor)).then(again(tensor)))
    for end in ends:
        end.wait()
    parallel_assert(comm, all((t == comm.size**3).all() for t in total), total)


@pytest.mark.parametrize("how", ["work", "future"])
def test_a_callback_may_wait_for_what_is_queued_behind_it(comm, how):
    group = dist.new_group()
    # The first takes a while, so that its callback is there before it is over.
    queued, tensors = [], [torch.ones(16 << 20), torch.ones(2), torch.ones(3)]
    begun = threading.Event()

    def wait(_):
        if threading.current_thread() is threading.main_thread():
            return True  # it was over: nothing is queued behind it yet
        begun.wait()
        (queued[0] if how == "work" else queued[0].get_future()).wait()
        return queued[0].is_completed() or FROM_2_14

    first = dist.all_reduce(tensors[0], group=group, async_op=True)
    waited = first.get_future().then(wait)
    queued += [dist.all_reduce(t, group=group, async_op=True) for t in tensors[1:]]
    begun.set()
    parallel_assert(comm, waited.wait(), "did not wait")
    queued[1].wait()
    dist.all_reduce(tensors[0], group=group)
    want = [comm.size**2, comm.size, comm.size]
    parallel_assert(comm, [t[0].item() for t in tensors] == want, tensors)
    dist.destroy_process_group(group)


def test_a_callback_of_a_message_may_wait_for_another(comm):
    rank, size = comm.rank, comm.size
    before, after = (rank - 1) % size, (rank + 1) % size
    got = [torch.empty(2), torch.empty(3)]
    second = dist.irecv(got[1], before, tag=2)
    first = dist.irecv(got[0], before, tag=1)
    waited = first.get_future().then(lambda _: second.get_future().wait()[0].sum().item())
    comm.Barrier()
    works = [dist.isend(torch.full((n + 1,), 1.0 + rank), after, tag=n) for n in (1, 2)]
    parallel_assert(comm, waited.wait() == 3 * (1 + before), "another sum")
    for work in works:
        work.wait()


def test_a_call_that_waits_runs_on_its_own_thread_where_nothing_is_queued(comm):
    group = dist.new_group()
    threads = []
    end = listen(lambda event: threads.append(threading.current_thread().name))
    dist.all_reduce(torch.ones(3), group=group)
    parallel_assert(comm, threads == ["MainThread"], threads)
    dist.all_reduce(torch.ones(3), group=group, async_op=True).wait()
    end()
    parallel_assert(comm, threads == ["MainThread", "hvd_ext progress"], threads)
    dist.destroy_process_group(group)


def test_messages_meet_by_tag_and_source(comm):
    rank, size = comm.rank, comm.size
    before, after = (rank - 1) % size, (rank + 1) % size
    sent = [torch.full((n,), 10.0 * rank + n) for n in (1, 3, 300_000)]
    got = [torch.empty(n) for n in (1, 3, 300_000)]
    works = [dist.isend(t, after, tag=n) for n, t in enumerate(sent)]
    works += [dist.irecv(got[n], before, tag=n) for n in (2, 0, 1)]
    for work in works:
        work.wait()
    right = [(t == 10.0 * before + t.numel()).all() for t in got]
    parallel_assert(comm, all(right), right)
    wide = torch.zeros(4, 4)
    pair = [
        dist.P2POp(dist.irecv, wide.t()[0], before),
        dist.P2POp(dist.isend, torch.full((4,), float(rank)), after),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    parallel_assert(comm, (wide[:, 0] == before).all() and wide[:, 1:].sum() == 0, wide)


def test_a_message_from_any_rank(comm):
    if comm.rank:
        dist.send(torch.tensor([comm.rank]), 0)
        return
    found = {}
    for _ in range(comm.size - 1):
        tensor = torch.empty(1, dtype=torch.int64)
        if FROM_2_14:
            dist.irecv(tensor).wait()
            source = int(tensor)
        else:
            source = dist.recv(tensor)
        found[source] = int(tensor)
    assert found == {rank: rank for rank in range(1, comm.size)}


def test_a_long_message_moves_while_its_sender_computes(comm):
    tensor = torch.full((3_000_000,), float(comm.rank))
    store = _get_default_store()
    if comm.rank == 0:
        work = dist.isend(tensor, 1)
        store.wait(["received"])  # outside MPI
        work.wait()
    elif comm.rank == 1:
        dist.recv(tensor, 0)
        store.set("received", "")
        assert (tensor == 0).all()


def test_a_message_of_another_size_is_refused(comm):
    if comm.rank == 0:
        dist.send(torch.ones(3), 1, tag=5)
        dist.send(torch.ones(3), 1, tag=5)
    elif comm.rank == 1:
        with pytest.raises(MismatchError, match="12 bytes came for a tensor of 16"):
            dist.recv(torch.ones(4), 0, tag=5)
        with pytest.raises(MismatchError, match="more bytes came for a tensor of 8"):
            dist.recv(torch.ones(2), 0, tag=5)
    with pytest.raises(UsageError, match="tag -1: use one of 0 to"):
        dist.isend(torch.ones(1), 0, tag=-1)


def test_a_wait_that_is_too_short_names_who_is_missing(comm):
    group = dist.new_group()
    late, limit = comm.size - 1, timedelta(seconds=0.4)
    tensors = [torch.ones(2), torch.ones(1)]
    if comm.rank != late:
        work = dist.all_reduce(tensors[0], group=group, async_op=True)
        said = "look for late ranks"
        while "look for late ranks" in said:  # the call has not begun: the machine is busy
            with pytest.raises(StallError) as caught:
                work.wait(limit)
            said = str(caught.value)
        assert re.search(rf"rank {late} .* did not reach all_reduce\(\) within", said), said
        message = dist.irecv(tensors[1], late, group=group)
        with pytest.raises(StallError, match=rf"rank {late} .* did not reach the send\(\) that"):
            message.wait(limit)
    comm.Barrier()
    if comm.rank == late:
        work = dist.all_reduce(tensors[0], group=group, async_op=True)
        for rank in range(late):
            dist.send(tensors[1] * 7, rank, group=group)
    else:
        message.wait()
        assert tensors[1] == 7
    work.wait()
    parallel_assert(comm, (tensors[0] == comm.size).all(), tensors[0])
    dist.destroy_process_group(group)


def test_a_monitored_barrier_names_who_is_missing(comm):
    group = dist.new_group()
    group.monitored_barrier(timedelta(seconds=20))
    if comm.rank:
        comm.recv(source=0)
    else:
        named = (
            r"Rank 1 failed to pass monitoredBarrier: ranks? 1 .*did not reach monitored_barrier"
        )
        with pytest.raises(StallError, match=named) as caught:
            group.monitored_barrier(timedelta(seconds=0.3))
        assert caught.value.ranks == tuple(range(1, comm.size))
        for rank in range(1, comm.size):
            comm.send(None, rank)
    dist.destroy_process_group(group)


def test_a_monitored_barrier_of_some_ranks_names_those_of_the_world(comm):
    first, last = comm.size - 2, comm.size - 1
    group = dist.new_group([first, last])
    if comm.rank == first:
        named = rf"Rank 1 failed to pass monitoredBarrier: rank {last} \("
        with pytest.raises(StallError, match=named):
            group.monitored_barrier(timedelta(seconds=0.3))
    comm.Barrier()
    if comm.rank >= first:
        dist.destroy_process_group(group)


def test_an_abort_ends_what_is_under_way(comm):
    group = dist.new_group()
    if comm.rank == 0:
        works = [dist.all_reduce(torch.ones(3), group=group, async_op=True) for _ in range(2)]
        works.append(dist.irecv(torch.ones(3), 1, group=group))
        started = threading.Timer(0.2, group.abort)
        started.start()
        for work in works:
            with pytest.raises(HvdExtError, match="the process group"):
                work.wait()
        started.join()
        with pytest.raises(UsageError, match="the process group was destroyed"):
            dist.all_reduce(torch.ones(3), group=group)
    comm.Barrier()
    dist.destroy_process_group(group)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: dist.all_reduce(torch.ones(3).to_sparse(), dist.ReduceOp.MAX), "SUM or AVG"),
        (lambda: dist.all_reduce(torch.ones(3).bool(), dist.ReduceOp.AVG), "AVG of bool: use SUM"),
        (lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND), "BAND of float32"),
        (lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(2)), "with 3 elements"),
        (lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), [1], [2]), "split into"),
        (lambda: dist.scatter(torch.ones(1), [torch.ones(1)] * 9, dist.get_rank()), "list of 9"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_is_not_served_is_refused_at_once(call, says):
    with pytest.raises(UsageError, match=says):
        call()
    total = torch.ones(1)
    dist.all_reduce(total)  # and the group goes on
    assert total == dist.get_world_size()


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
def test_sparse_tensors_are_refused_but_for_a_sum():
    with pytest.raises(NO_SPARSE, match=r"sparse tensor: call to_dense|c10d::broadcast_"):
        dist.broadcast(torch.ones(3).to_sparse(), 0)
    with pytest.raises(NO_SPARSE, match=r"sparse tensor: call to_dense|c10d::allreduce_"):
        dist.all_reduce(torch.ones(3, 3).to_sparse_csr())
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total == dist.get_world_size()


def test_sizes_that_differ_between_ranks_are_refused_on_all_of_them(comm):
    rows = [1] * comm.size
    taken = [2 if comm.rank == 1 and giver == 0 else 1 for giver in range(comm.size)]
    with pytest.raises(MismatchError, match="rank 0 gives rank 1 4 bytes, and that one expects 8"):
        dist.all_to_all_single(torch.ones(sum(taken)), torch.ones(comm.size), taken, rows)
    dist.barrier()


def test_groups_of_some_ranks(comm):
    rank, size = comm.rank, comm.size
    pairs = [dist.new_group([r, r + 1]) for r in range(size - 1)]
    alone = dist.new_group([size - 1])
    for first, group in enumerate(pairs):
        if rank in (first, first + 1):
            tensor = torch.tensor([rank])
            dist.all_reduce(tensor, group=group)
            assert tensor == 2 * first + 1
            dist.broadcast(tensor.fill_(rank), first + 1, group)
            assert tensor == first + 1
            dist.destroy_process_group(group)
    if rank == size - 1:
        dist.barrier(alone)
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("outer", "inner"))
    total = torch.ones(2)
    dist.all_reduce(total, group=mesh.get_group("inner"))
    dist.all_reduce(total, group=mesh.get_group("outer"))
    parallel_assert(comm, (total == size).all(), total)


def test_a_hundred_groups_leave_nothing(comm):
    from hvd_ext.c10d.ranks import _topologies

    def use():
        group = dist.new_group()
        dist.all_reduce(torch.ones(3), group=group, async_op=True).wait()
        works = [dist.irecv(torch.ones(3), (comm.rank - 1) % comm.size, group=group)]
        comm.Barrier()  # the thread that looks at messages starts in the first round
        works.append(dist.isend(torch.ones(3), (comm.rank + 1) % comm.size, group=group))
        for work in works:
            work.wait()
        dist.destroy_process_group(group)

    def counted():
        leases = sum(len(t._communicators._leases) for t in _topologies.values())
        maps = len(Path("/proc/self/maps").read_text().splitlines())
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        return [descriptors, threading.active_count(), leases, len(_topologies), maps]

    for _ in range(3):
        use()
    before = counted()
    for _ in range(100):
        use()
    after = counted()
    few = (0, 0, 0, 0, 50)  # the allocator maps memory when it likes
    grown = [b > a + more for a, b, more in zip(before, after, few, strict=True)]
    parallel_assert(comm, not any(grown), (before, after))


def gradients(rank, group, attached=False, **options):
    torch.manual_seed(2)
    model = DistributedDataParallel(Net(), process_group=group, **options)
    kept = hvd_ext.c10d.attach(model) if attached else None
    seen = []
    for step in range(3):
        x, target = batch(step, rank)
        torch.nn.functional.mse_loss(model(x), target).backward()
        seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        model.zero_grad()
    assert not attached or "reduced where they lie" in kept.explain()
    return seen


def test_ddps_gradients_are_gloos(comm):
    gloo = dist.new_group(backend="gloo")
    for options in ({}, {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True}):
        want, got = (gradients(comm.rank, group, **options) for group in (gloo, None))
        compare = torch.equal if comm.size == 2 else torch.allclose
        near = [compare(a, b) for a, b in zip(want, got, strict=True)]
        parallel_assert(comm, all(near), near)
        everyones = comm.allgather([g.numpy().tobytes() for g in got])
        parallel_assert(comm, all(one == everyones[0] for one in everyones), "ranks differ")
    got = gradients(comm.rank, None, attached=True)
    near = [torch.allclose(a, b) for a, b in zip(want, got, strict=True)]
    parallel_assert(comm, all(near), near)
    dist.destroy_process_group(gloo)


def test_ddp_with_powersgd_of_torch(comm):
    """Its hook's callbacks begin collectives, and wait for them."""
    torch.manual_seed(2)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.03)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    torch.manual_seed(comm.rank)
    for _ in range(5):
        model.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
    own = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy().tobytes()
    parallel_assert(comm, set(comm.allgather(own)) == {own}, "ranks differ")


def test_the_timeout_of_a_group_counts_in_hvd_exts_own_exchanges(comm):
    for backend in ("gloo", "hvd_ext"):
        group = dist.new_group(backend=backend, timeout=timedelta(seconds=15))
        assert limit_of(group) == (15, "the timeout of the process group")
        dist.destroy_process_group(group)
    stall_s = variables.STALL_TIMEOUT_S.read()
    assert limit_of(dist.group.WORLD) == (stall_s, "HVD_EXT_STALL_TIMEOUT_S")


def losses(rank, size, used):
    torch.manual_seed(2)
    model = Net()
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    if used:
        fsdp.use(model)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(3):
        x, target = batch(step, rank)
        loss = torch.nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


def test_fsdp2_has_the_same_losses_with_and_without_use(comm):
    want, got = losses(comm.rank, comm.size, True), losses(comm.rank, comm.size, False)
    parallel_assert(comm, want == got and len(set(got)) == 3, (want, got))


def test_it_starts_again_and_again(comm):
    dist.destroy_process_group()
    both = [] if FROM_2_14 else ["cpu:hvd_ext,cuda:nccl"]  # NCCL itself needs a GPU
    for name in (*both, "hvd_ext", "gloo", "cpu:hvd_ext", "hvd_ext"):
        dist.init_process_group(name, init_method="mpi://")
        total = torch.ones(1)
        dist.all_reduce(total, async_op=True)
        dist.barrier()
        parallel_assert(comm, total == comm.size, total)
        dist.destroy_process_group()
    dist.init_process_group("hvd_ext", init_method="mpi://")
