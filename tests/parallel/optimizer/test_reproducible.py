"""Reproducible steps: the bits of one process, on any number of ranks, nodes and buckets."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from hvd_ext.allreduce.algorithms import ALGORITHMS
from hvd_ext.allreduce.algorithms.direct_tree import tree_algorithm
from hvd_ext.errors import UsageError
from hvd_ext.torch.job import lifecycle
from hvd_ext.torch.reduction import arena_factory
from tests.ranks.asserts import parallel_assert
from tests.support.optimizer.reproducing import (
    SEED,
    SLOTS,
    build,
    by_halves,
    differences,
    expected,
    loss_of,
    train,
)

ONE, TWO, EIGHT = (pytest.param(number, marks=pytest.mark.long) for number in (1, 2, 8))


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    torch.use_deterministic_algorithms(False)


def check(comm, dtype=torch.float32, **arguments) -> str:
    trained = train(dtype=dtype, **arguments)
    found = differences(trained, expected(dtype=dtype))
    parallel_assert(comm, not found, found)
    said = trained[1].explain()
    trained[1]._reducer.close()  # which has threads between nodes
    return said


@pytest.mark.ranks(1, 2, 4, EIGHT, timeout_s=300)
@pytest.mark.parametrize(
    "nodes_of",
    [2, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 4))],
    ids="{}nodes".format,
)
def test_bits_are_those_of_one_process(comm, hvd, nodes, monkeypatch, nodes_of):
    if comm.size < nodes_of:
        return
    nodes(comm.size // nodes_of)
    for bucket_bytes, sharded in (("2 KiB", True), ("64 KiB", False), (None, nodes_of < 4)):
        if bucket_bytes:
            monkeypatch.setenv("HVD_EXT_BUCKET_BYTES", bucket_bytes)
        else:
            monkeypatch.delenv("HVD_EXT_BUCKET_BYTES")  # rebuilt by measurement
        check(comm, sharded=sharded)


@pytest.mark.ranks(4, EIGHT, timeout_s=300)
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(name, marks=[pytest.mark.long] * (number % 6 != 0))
        for number, name in enumerate(ALGORITHMS)
    ],
)
def test_whatever_the_table_names(comm, hvd, nodes, monkeypatch, algorithm):
    from hvd_ext.allreduce.table import Row, Table

    table = Table((Row(0, 0, "host", ((0, algorithm),)),), "a test")
    monkeypatch.setattr(arena_factory, "read_table", lambda _: table)
    nodes(comm.size // 4)
    said = check(comm)
    parallel_assert(comm, f": {tree_algorithm(algorithm)}, in tree order" in said, said)


@pytest.mark.ranks(ONE, TWO, 4)
def test_gradients_of_16_bits_are_rounded_once(comm, hvd, nodes):
    nodes(max(1, comm.size // 2))
    check(comm, dtype=torch.bfloat16)


@pytest.mark.ranks(2)
def test_partial_sums_are_few(comm, hvd):
    """At most lg(passes) + 1 for each parameter, of which one is in the arena."""
    model, inner = build()
    optimizer = hvd.DistributedOptimizer(inner, reproducible=32)
    reducer, most = optimizer._reducer, 0
    for slot in range(16):
        loss_of(model, 0, slot).backward()
        most = max(most, *(len(partial) for partial in reducer._partial.values()))
    optimizer.step()
    assert most == 4


@pytest.mark.ranks(1, 2)
def test_it_is_said(comm, hvd):
    _, inner = build()
    said = hvd.DistributedOptimizer(inner, reproducible=SLOTS).explain()
    assert f"reproducible: {SLOTS} slots, {SLOTS // comm.size} on each rank" in said
    assert ("in tree order" if comm.size > 1 else "summed by one tree") in said


def refused(hvd, **arguments) -> str:
    with pytest.raises(UsageError) as error:
        hvd.DistributedOptimizer(build()[1], **{"reproducible": SLOTS, **arguments})
    line = str(error.value)
    assert "\n" not in line
    assert "reproducible=" in line
    return line


@pytest.mark.ranks(2)
def test_refusals_name_what_does_not_go_with_it(comm, hvd, monkeypatch):
    assert "give 4 or 8" in refused(hvd, reproducible=6)
    assert "give 2 or 4" in refused(hvd, reproducible=1)
    assert "compression='int8'" in refused(hvd, compression=hvd.Compression.int8)
    assert "compression='auto'" in refused(hvd, compression="auto")
    assert "sync='local_sgd:steps=2'" in refused(hvd, sync=hvd.LocalSGD(2))
    assert "sync='one_step_late'" in refused(hvd, sync="one_step_late")
    assert "backward_passes_per_step=3" in refused(hvd, backward_passes_per_step=3)
    assert "Average and Sum only" in refused(hvd, op=hvd.Adasum)
    monkeypatch.setenv("HVD_EXT_REPRODUCIBLE", "7")
    assert "reproducible=7" in refused(hvd, reproducible=None)
    monkeypatch.setenv("HVD_EXT_REPRODUCIBLE", "8.5")
    with pytest.raises(UsageError, match=r"HVD_EXT_REPRODUCIBLE='8\.5'"):
        hvd.DistributedOptimizer(build()[1])
    model = build(torch.bfloat16)[0]
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"sharded=True and parameters of torch\.bfloat16"):
        hvd.DistributedOptimizer(inner, reproducible=SLOTS, sharded=True)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sharded", [False, True])
def test_join_is_refused_on_the_rank_that_calls_it_and_those_that_wait(
    comm, hvd, monkeypatch, sharded
):
    # Ranks go on from here with different numbers of steps.
    monkeypatch.setattr(lifecycle._job, "begun", None)
    model, inner = build()
    optimizer = hvd.DistributedOptimizer(inner, reproducible=2, sharded=sharded)

    def step():
        loss_of(model, 0, comm.rank).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with pytest.raises(UsageError) as error:
        (hvd.join if comm.rank == 1 else step)()
    lines = comm.allgather(str(error.value))
    assert lines[1].startswith("hvd.join() with reproducible=: a rank that has joined")
    assert lines[0].startswith("rank 1 (")
    assert lines[0].endswith(f"called {lines[1]}")


@pytest.mark.ranks(3)
def test_three_ranks_are_refused(comm, hvd):
    assert "start 2 or 4 ranks" in refused(hvd)


@pytest.mark.ranks(1, 2)
def test_another_number_of_backward_passes_is_refused(comm, hvd):
    model, inner = build()
    optimizer = hvd.DistributedOptimizer(inner, reproducible=SLOTS)
    loss_of(model, 0, 0).backward()
    with pytest.raises(UsageError, match=f"1 backward passes before step.*{SLOTS // comm.size}"):
        optimizer.step()
    optimizer._reducer._reset()
    for slot in range(SLOTS // comm.size):
        loss_of(model, 0, slot).backward()
    with pytest.raises(AssertionError, match="more often than once in each of"):
        loss_of(model, 0, 0).backward()
    with pytest.raises(UsageError, match="set_passes_per_step"):
        optimizer.set_backward_passes_per_step(3)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("sharded", [False, True])
def test_a_gradient_that_two_parameters_share_is_added_once_to_each(comm, hvd, sharded):
    factors = torch.randn(8, 4, 4, generator=torch.Generator().manual_seed(1))
    factors[1] = 0.0  # this slot uses neither of them
    pair = [torch.nn.Parameter(torch.zeros(16)) for _ in range(2)]
    spare = torch.nn.Parameter(torch.zeros(3))
    inner = torch.optim.SGD([*pair, spare], lr=0.0)
    optimizer = hvd.DistributedOptimizer(inner, reproducible=8, sharded=sharded)
    each = 8 // comm.size
    mine = range(comm.rank * each, (comm.rank + 1) * each)
    of_program = {}  # what its own hook has seen, which is the same memory
    for slot in mine:
        if slot == 1:
            spare.sum().backward()
            continue
        both = pair[0].view(4, 4) + pair[1].view(4, 4)
        both.register_hook(lambda grad, at=slot: of_program.__setitem__(at, grad))
        (both * factors[slot]).sum().backward()
    optimizer.synchronize()
    wanted = by_halves(factors) / 8
    for p in pair:
        parallel_assert(comm, torch.equal(p.grad.view(4, 4), wanted), p.grad)
    changed = [at for at, grad in of_program.items() if not torch.equal(grad, factors[at])]
    parallel_assert(comm, not changed, f"gradients of the program were changed in {changed}")
    optimizer._reducer.close()


class Norms(torch.nn.Module):
    """Norms of each kind of averages; one is computed again in backward, up to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 3, 3)
        self.batch = torch.nn.BatchNorm2d(3)
        self.cumulative = torch.nn.BatchNorm2d(3, momentum=None)
        self.instance = torch.nn.InstanceNorm2d(3, track_running_stats=True)
        self.never = torch.nn.InstanceNorm2d(3, momentum=None, track_running_stats=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.cumulative(checkpoint(self.batch, self.conv(x), use_reentrant=False))
        return self.never(checkpoint(self.instance, y, use_reentrant=False))


@pytest.mark.ranks(1, 2)
def test_norms_have_the_averages_of_torch_and_their_momentum(comm, hvd):
    torch.manual_seed(7)
    ours = Norms()
    theirs = copy.deepcopy(ours)
    slots = hvd.Slots(ours, 4, seed=SEED)
    teacher = copy.deepcopy(ours)  # with its hooks
    before = copy.deepcopy(ours.state_dict())
    data = torch.randn(2, 4, 2, 2, 8, 8, generator=torch.Generator().manual_seed(1))

    def loss_of(slot: int) -> torch.Tensor:
        with torch.no_grad():
            target = teacher.eval()(data[step, slot] + 3.0)
        with pytest.raises(RuntimeError):
            ours.batch(data[step, slot])  # has two channels, not three
        return (ours(data[step, slot]) - target).square().mean()

    for step in range(2):
        slots.backward(step, loss_of)
        for x in data[step]:
            theirs(x).square().mean().backward()
    held, wanted = ours.state_dict(), theirs.state_dict()
    for name, value in wanted.items():
        parallel_assert(comm, torch.allclose(held[name], value, rtol=1e-4), (name, held[name]))
    for name, value in teacher.state_dict().items():
        parallel_assert(comm, torch.equal(value, before[name]), f"{name} of the teacher")
    momenta = [m.momentum for m in (ours.batch, ours.cumulative, ours.instance, ours.never)]
    parallel_assert(comm, momenta == [0.1, None, 0.1, None], momenta)
