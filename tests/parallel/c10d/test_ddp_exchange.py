"""The exchange of DDP's buckets: on more ranks and nodes, where memory is short, after errors."""

from __future__ import annotations

import gc
import logging
import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from hvd_ext.c10d import attach, window
from hvd_ext.c10d.ranks import topology_of
from hvd_ext.errors import MismatchError, UsageError
from hvd_ext.events import listen
from tests.ranks.asserts import assert_same_bits, parallel_assert
from tests.support.arena.pretended_nodes import pretend
from tests.support.c10d.models import CAP_MB, SHAPES, Weighted, flat, gradients_of, train, wrap

pytestmark = pytest.mark.usefixtures("gloo")
FOUR = pytest.param(4, marks=pytest.mark.long)


def mean(size, step):
    ranks = [gradients_of(rank, 10 * step) for rank in range(size)]
    return np.mean(
        [np.concatenate([g.double().numpy().ravel() for g in grads]) for grads in ranks], axis=0
    )


def check_means(comm, steps, tolerance=1e-6):
    for step, got in enumerate(steps):
        assert_same_bits(comm, got.numpy(), f"step {step}")
        wrong = np.abs(got.view(torch.float32).numpy() - mean(comm.size, step)).max()
        parallel_assert(comm, wrong < tolerance, wrong)


@pytest.mark.ranks(1, 3, FOUR)
@pytest.mark.parametrize("view", [False, True], ids=["copied", "view"])
def test_all_ranks_have_the_same_mean(comm, view):
    check_means(comm, train(True, gradient_as_bucket_view=view))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("ranks_per_node", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize(
    ("compression", "tolerance"),
    [("none", 1e-6), ("bf16", 0.05), ("fp16", 0.01), ("int8", 0.2), ("powersgd:rank=2", 9)],
)
def test_shards_go_between_nodes(comm, monkeypatch, ranks_per_node, compression, tolerance):
    pretended = pretend(comm, ranks_per_node)
    monkeypatch.setattr("hvd_ext.c10d.ddp.topology_of", lambda group: pretended)
    monkeypatch.setenv("HVD_EXT_COMPRESSION", compression)
    said = []
    check_means(comm, train(True, looked_at=lambda e, _: said.append(e.explain())), tolerance)
    parallel_assert(comm, "between nodes" in said[0], said)
    if compression != "none":
        parallel_assert(comm, compression in said[0], said)
    gc.collect()


@pytest.mark.ranks(4)
def test_what_int8_rounds_away_is_sent_later(comm, monkeypatch):
    pretended = pretend(comm, 2)
    monkeypatch.setattr("hvd_ext.c10d.ddp.topology_of", lambda group: pretended)
    model = wrap(Weighted())
    exchange = attach(model, "int8")
    total, wanted, steps = 0.0, 0.0, 40
    for step in range(steps):
        model.zero_grad()
        model(gradients_of(comm.rank, 10 * step)).backward()
        total += flat(model).view(torch.float32).double().numpy()
        wanted += mean(comm.size, step)
    # One step's rounding is left, however many there were.
    parallel_assert(comm, np.abs(total - wanted).max() < 0.1, np.abs(total - wanted).max())
    assert "int8" in exchange.explain()


@pytest.mark.ranks(3)
def test_a_full_shm_has_all_ranks_copy_and_one_says_so(comm, monkeypatch, caplog):
    if comm.rank == 1:

        def full(tensor):
            raise RuntimeError("unable to allocate shared memory(shm) for file <x>\nmore")

        monkeypatch.setattr(window, "share_storage", full)
    said = []
    with caplog.at_level(logging.WARNING, "hvd_ext"):
        check_means(comm, train(True, looked_at=lambda e, _: said.append(e.explain())))
    parallel_assert(comm, "unable to allocate shared memory" in said[0], said)
    lines = [r.message for r in caplog.records if "copied to shared memory" in r.message]
    parallel_assert(comm, len(lines) == (comm.rank == 0), lines)


@pytest.mark.ranks(3)
def test_without_any_shared_memory_ddps_own_group_serves(comm, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    said = []
    if comm.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with caplog.at_level(logging.WARNING, "hvd_ext"):
            check_means(comm, train(True, looked_at=lambda e, _: said.append(e.explain())))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    parallel_assert(comm, said[0].startswith("by DDP's own process group: "), said)


@pytest.mark.ranks(3)
def test_nodes_of_different_sizes_leave_it_to_ddps_own_group(comm, monkeypatch):
    pretended = pretend(comm, 2)
    monkeypatch.setattr("hvd_ext.c10d.ddp.topology_of", lambda group: pretended)
    said = []
    check_means(comm, train(True, looked_at=lambda e, _: said.append(e.explain())))
    parallel_assert(comm, "different numbers of ranks" in said[0], said)


@pytest.mark.ranks(4)
def test_a_group_of_some_ranks(comm):
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = groups[comm.rank % 2]
    model = wrap(Weighted(), process_group=group)
    exchange = attach(model)
    for step in range(3):
        model.zero_grad()
        model(gradients_of(comm.rank, step)).backward()
    ours = [gradients_of(rank, 2) for rank in (comm.rank % 2, comm.rank % 2 + 2)]
    want = np.concatenate([(a + b).numpy().ravel() / 2 for a, b in zip(*ours, strict=True)])
    got = flat(model).view(torch.float32).numpy()
    parallel_assert(comm, np.array_equal(got, want), np.abs(got - want).max())
    assert "2 ranks" in exchange.explain()


@pytest.mark.ranks(2)
def test_each_bucket_is_one_event(comm):
    events = []
    end = listen(events.append)
    train(True, steps=5)
    end()
    parallel_assert(comm, len(events) > 5, events)
    total = 5 * sum(4 * int(np.prod(shape)) for shape in SHAPES)
    parallel_assert(comm, sum(e.message_bytes for e in events) == total, events)
    parallel_assert(comm, {e.algorithm for e in events} == {"shared_memory"}, events)
    parallel_assert(comm, all(e.ready_s and e.size == 2 for e in events), events)


@pytest.mark.ranks(2)
def test_models_that_are_dropped_leave_no_thread_and_no_descriptor(comm):
    def count():
        gc.collect()
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    train(True, steps=3)
    first = count()
    for _ in range(20):
        train(True, steps=3)
    # Threads end after what they were given.
    for thread in threading.enumerate():
        if thread.name == "hvd_ext progress":
            thread.join(5)
    after = count()
    parallel_assert(comm, after[0] <= first[0], (first, after))
    parallel_assert(comm, after[1] <= first[1], (first, after))


@pytest.mark.ranks(2)
def test_a_forked_child_changes_no_gradient_of_its_parents(comm):
    """Nor does a child of that child; and a child has what its own parent wrote."""

    def fork(look):
        child = os.fork()
        if child == 0:
            os._exit(0 if look() else 1)
        return os.waitpid(child, 0)[1] == 0

    model = wrap(Weighted(), gradient_as_bucket_view=True)
    exchange = attach(model)
    for _ in range(6):
        model(gradients_of(comm.rank, 0)).backward()
    assert "reduced where they lie" in exchange.explain()
    grads = [parameter.grad for parameter in model.parameters()]

    def zero():
        for grad in grads:
            grad.zero_()
        return fork(lambda: not any(grad.any() for grad in grads))

    for closed in (False, True):
        if closed:
            exchange.close()  # DDP keeps its buckets
        before = flat(model)
        right = fork(zero)
        comm.Barrier()
        parallel_assert(comm, right and torch.equal(flat(model), before), (closed, right))


@pytest.mark.ranks(2)
def test_the_group_may_be_destroyed_and_made_again(comm):
    dist.destroy_process_group()
    for _ in range(3):
        dist.init_process_group("gloo", init_method="mpi://")
        check_means(comm, train(True, steps=3))
        dist.destroy_process_group()
    dist.init_process_group("gloo", init_method="mpi://")


@pytest.mark.ranks(2)
def test_ranks_that_differ_are_refused_on_all(comm):
    with pytest.raises(MismatchError, match="rank 1 asks for 'int8', and rank 0 for 'none'"):
        attach(wrap(Weighted()), "int8" if comm.rank else "none")
    # Otherwise DDP takes one bucket at first, and rank 0's for the others.
    cap_mb = 25 if comm.rank else CAP_MB
    model = wrap(Weighted(), bucket_cap_mb=cap_mb, find_unused_parameters=True)
    attach(model)
    with pytest.raises(MismatchError, match="bucket_cap_mb"):
        model(gradients_of(comm.rank, 0)).backward()


@pytest.mark.ranks(2)
def test_what_is_not_served_is_refused_by_name(comm):
    with pytest.raises(UsageError, match="Weighted"):
        attach(Weighted())
    with pytest.raises(UsageError, match="sparse=False"):
        attach(wrap(torch.nn.Embedding(5, 3, sparse=True)))
    with pytest.raises(UsageError, match="complex64"):
        attach(wrap(Weighted(torch.complex64)))
    with pytest.raises(UsageError, match="'auto'"):
        attach(wrap(Weighted()), "auto")
    assert topology_of(dist.group.WORLD).world.size == comm.size
