"""Compression between nodes: what is learnt, what is kept, and what one node has of it."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import hvd_ext.torch
from hvd_ext.arena import inter_node
from hvd_ext.errors import MismatchError, UsageError
from tests.ranks.asserts import assert_same_bits, parallel_assert
from tests.support.optimizer.learning import Net, batch, flat

FORMATS = ("bf16", "fp16", "int8", "powersgd:rank=2")


@pytest.fixture
def at_once(monkeypatch):
    """Buckets are laid out before the first step: what is rounded away is kept from there on."""
    monkeypatch.setenv("HVD_EXT_BUCKET_BYTES", "2 KiB")


def build(compression, seed=3, kind=torch.optim.SGD, **options):
    torch.manual_seed(seed)
    model = Net()
    if not options:  # Horovod broadcasts no state that lies so
        model.conv.to(memory_format=torch.channels_last)
    inner = kind(model.parameters(), **(options or {"lr": 0.1, "momentum": 0.9}))
    optimizer = hvd_ext.torch.DistributedOptimizer(
        inner, named_parameters=model.named_parameters(), compression=compression
    )
    return model, optimizer


def train(model, optimizer, steps, first=0):
    losses = []
    for step in range(first, first + steps):
        x, target = batch(step, hvd_ext.torch.rank())
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(hvd_ext.torch.allreduce(loss.detach(), name="loss").item())
    return losses


@pytest.mark.ranks(2)
@pytest.mark.parametrize("compression", [*FORMATS, "auto"])
def test_on_one_node_nothing_is_rounded(comm, hvd, compression):
    model, optimizer = build(compression)
    expected, plain = build("none")
    train(model, optimizer, 8)
    train(expected, plain, 8)
    parallel_assert(comm, (flat(model) == flat(expected)).all())
    assert "compression: none: one node" in optimizer.explain()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("ranks_per_node", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("compression", FORMATS)
def test_ranks_have_the_same_bits_and_learn_as_without(
    comm, hvd, nodes, ranks_per_node, compression
):
    nodes(ranks_per_node)
    model, optimizer = build(compression)
    expected, plain = build("none")
    for step in range(0, 40, 10):
        losses = train(model, optimizer, 10, step)
        exact = train(expected, plain, 10, step)
        assert_same_bits(comm, flat(model))
    if "powersgd" in compression:  # which learns more slowly
        assert losses[-1] < 3 * exact[-1]
    else:
        assert losses[-1] == pytest.approx(exact[-1], rel=0.1)
    parallel_assert(comm, not (flat(model) == flat(expected)).all())
    said = optimizer.explain()
    assert f"compression: {compression}" in said
    assert "coding takes " in said
    assert "exposed in the last step: " in said
    kept = re.search(r"not sent yet, on this node: (\S+) of the last sum's length", said)
    assert (kept is not None and float(kept[1]) > 0) == ("16" not in compression)


@pytest.mark.usefixtures("at_once")
@pytest.mark.ranks(2, pytest.param(4, marks=pytest.mark.long))
@pytest.mark.parametrize(
    ("compression", "kind", "options"),
    [
        ("powersgd:rank=2", torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
        ("int8", torch.optim.Adam, {"lr": 0.01}),
    ],
)
def test_a_drained_run_resumes_to_the_bit(comm, hvd, nodes, compression, kind, options):
    nodes(comm.size // 2)
    model, optimizer = build(compression, kind=kind, **options)
    train(model, optimizer, 7)
    optimizer.drain()
    state, weights = copy.deepcopy(optimizer.state_dict()), model.state_dict()
    unsent = state["hvd_ext"]["residuals"]
    assert all(tensor.shape == list(model.parameters())[i].shape for i, tensor in unsent.items())
    assert any(tensor.any() for tensor in unsent.values())
    # Rank 0 has read the checkpoint, and gives it to the others.
    resumed, second = build(compression, seed=9, kind=kind, **options)
    resumed.load_state_dict(weights)
    if comm.rank == 0:
        second.load_state_dict(state)
    hvd.broadcast_optimizer_state(second, root_rank=0)
    train(model, optimizer, 7, 7)
    train(resumed, second, 7, 7)
    parallel_assert(comm, (flat(model) == flat(resumed)).all())


@pytest.mark.usefixtures("at_once")
@pytest.mark.ranks(4)
@pytest.mark.parametrize("compression", ["int8", "powersgd:rank=2"])
def test_what_is_drained_serves_another_number_of_nodes(comm, hvd, nodes, compression):
    nodes(1)
    model, optimizer = build(compression)
    train(model, optimizer, 7)
    optimizer.drain()
    before = optimizer.drained["residuals"]
    nodes(2)
    _, other = build(compression)
    other.load_state_dict(optimizer.state_dict())
    other.drain()
    for index, tensor in before.items():
        torch.testing.assert_close(other.drained["residuals"][index], tensor)


def check_parameters_have_blocks_of_their_own(comm):
    # Of such lengths that a chunk has parts of both.
    big, small = (torch.nn.Parameter(torch.zeros(10, columns)) for columns in (20, 10))
    optimizer = hvd_ext.torch.DistributedOptimizer(
        torch.optim.SGD([big, small], lr=0.1), compression="int8"
    )
    sent = {
        p: s * torch.linspace(-1, 1, p.numel()).view_as(p) for p, s in ((big, 1e3), (small, 1e-3))
    }
    for parameter, gradient in sent.items():
        parameter.grad = gradient.clone()
    optimizer.synchronize()
    for parameter, gradient in sent.items():
        off = (parameter.grad - gradient).abs().max() / gradient.abs().max()
        parallel_assert(comm, off <= 1 / 120, off)


def across_parameters(bucket, shard, format):
    """Blocks go on from one parameter to the next one."""
    return [(0, bucket.count, format)]


@pytest.mark.usefixtures("at_once")
@pytest.mark.ranks(2)
def test_no_block_crosses_two_parameters(comm, hvd, nodes, monkeypatch):
    nodes(1)
    check_parameters_have_blocks_of_their_own(comm)
    monkeypatch.setattr(inter_node, "_runs", across_parameters)
    with pytest.raises(AssertionError):
        check_parameters_have_blocks_of_their_own(comm)


def whole_numbers(step, rank, weights):
    """Gradients whose sums over ranks and passes are exact."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randint(-999, 1000, w.shape, generator=generator).float() for w in weights]


def exchanged(weights, step, passes, optimizer):
    """What arrives of gradients, each the sum of so many passes."""
    optimizer.zero_grad()
    for _ in range(passes):
        own = whole_numbers(step, hvd_ext.torch.rank(), weights)
        sum((w * g * (3 // passes)).sum() for w, g in zip(weights, own, strict=True)).backward()
    optimizer.synchronize()
    return [w.grad.double() for w in weights]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("how", ["plain", "clipped", "skipped", "another group", "three passes"])
def test_what_arrived_and_what_is_kept_are_what_was_sent(comm, hvd, nodes, how):
    nodes(1)
    weights = [torch.nn.Parameter(torch.zeros(rows, 30)) for rows in (20, 40)]
    optimizer, passes = None, 3 if how == "three passes" else 1
    arrived, sent = [], []
    for step in range(12):
        late = how == "another group" and step < 6
        if step == 0:
            inner = torch.optim.SGD(weights[:1] if late else weights, lr=0.1)
            optimizer = hvd.DistributedOptimizer(
                inner, compression="int8", backward_passes_per_step=passes
            )
        elif how == "another group" and step == 6:
            optimizer.add_param_group({"params": weights[1:]})
        learnt = weights[:1] if late else weights
        arrived.append(exchanged(learnt, step, passes, optimizer))
        everybodys = [whole_numbers(step, rank, learnt) for rank in range(comm.size)]
        sent.append([3 * sum(of).double() / comm.size for of in zip(*everybodys, strict=True)])
        if how == "clipped":
            torch.nn.utils.clip_grad_norm_(learnt, 0.1)
        if how != "skipped" or step % 2:
            with optimizer.skip_synchronize():
                optimizer.step()
    optimizer.drain()
    for index in range(len(weights)):
        arrived_of, sent_of = (sum(s[index] for s in a if len(s) > index) for a in (arrived, sent))
        kept = optimizer.drained["residuals"][index]
        parallel_assert(comm, 0 < kept.abs().max() < 50)
        torch.testing.assert_close(arrived_of + kept, sent_of, rtol=0, atol=0.05)


@pytest.mark.ranks(2)
def test_several_passes_are_compressed_once(comm, hvd, nodes):
    nodes(1)
    of_passes = []
    for passes in (1, 3):
        weight = torch.nn.Parameter(torch.zeros(20, 30))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=0.1),
            compression="int8",
            backward_passes_per_step=passes,
        )
        of_passes.append([exchanged([weight], step, passes, optimizer)[0] for step in range(6)])
    parallel_assert(comm, all(map(torch.equal, *of_passes)))


def resident_bytes():
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1])


@pytest.mark.long
@pytest.mark.ranks(4)
def test_the_memory_it_takes_is_what_is_kept(comm, hvd, nodes):
    ranks_per_node, rows, columns, rank = 2, 2048, 4096, 4
    nodes(ranks_per_node)
    held = []

    def taken(compression):
        before = resident_bytes()
        weight = torch.nn.Parameter(torch.zeros(rows, columns))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=0.1), compression=compression
        )
        for _ in range(5):  # by then its buckets are laid anew
            optimizer.step()
            weight.grad.fill_(comm.rank + 1)
        held.append(optimizer)
        return resident_bytes() - before

    taken("none")  # with what is used by one after the other
    none = taken("none")
    kept = 4 * rows * columns // ranks_per_node
    for compression, besides in (
        ("int8", 0),
        (f"powersgd:rank={rank}", 8 * rank * (rows + columns)),
    ):
        more = taken(compression) - none
        parallel_assert(comm, more <= kept + besides + (8 << 20), f"{compression}: {more} bytes")


@pytest.mark.ranks(2)
def test_laying_the_buckets_anew_loses_nothing(comm, hvd, nodes):
    nodes(1)
    model, optimizer = build("int8")
    train(model, optimizer, 6)
    optimizer.drain()
    before = optimizer.drained["residuals"]
    optimizer._reducer._rebuild_buckets()
    _, resumed = build("int8")
    resumed.load_state_dict(optimizer.state_dict())
    # One has moved it, the other one waits until buckets are measured.
    for holds_it in (optimizer, resumed):
        holds_it.drain()
        for index, tensor in before.items():
            assert torch.equal(holds_it.drained["residuals"][index], tensor)


@pytest.mark.usefixtures("at_once")
@pytest.mark.ranks(2)
def test_a_state_without_what_is_unsent_says_so(comm, hvd, nodes, caplog):
    nodes(1)
    model, optimizer = build("int8")
    train(model, optimizer, 2)
    optimizer.state_dict()
    assert "call optimizer.drain() on all ranks before" in caplog.text


@pytest.mark.usefixtures("at_once")
@pytest.mark.ranks(2)
def test_what_is_not_finite_is_seen_by_every_rank(comm, hvd, nodes):
    nodes(1)
    model, optimizer = build("int8")
    train(model, optimizer, 2)
    optimizer.zero_grad()
    model(torch.randn(8, 3, 6, 6)).sum().backward(
        gradient=torch.tensor(float("inf") if comm.rank == 1 else 1.0)
    )
    optimizer.synchronize()
    found = not all(p.grad.isfinite().all() for p in model.parameters())
    assert comm.allgather(found) == [True] * comm.size


@pytest.mark.ranks(2)
def test_the_variable_counts_where_the_script_names_none(comm, hvd, nodes, monkeypatch):
    monkeypatch.setenv("HVD_EXT_COMPRESSION", "bf16")
    nodes(1)
    assert "compression: bf16" in build(hvd.Compression.none)[1].explain()
    assert "compression: int8" in build(hvd.Compression.int8)[1].explain()
    assert "compression: fp16" in build(hvd.Compression.fp16)[1].explain()


@pytest.mark.ranks(2)
def test_auto_chooses_alike_on_all_ranks(comm, hvd, nodes):
    nodes(1)
    model, optimizer = build(hvd.Compression.auto)
    train(model, optimizer, 8)
    line = next(s for s in optimizer.explain().splitlines() if s.startswith("compression: "))
    assert "with none" in line
    assert "with int8" in line
    assert len({text.split(":")[1] for text in comm.allgather(line)}) == 1
    assert_same_bits(comm, flat(model))


@pytest.mark.ranks(2)
def test_ranks_that_compress_otherwise_are_named(comm, hvd):
    with pytest.raises(MismatchError, match=r"rank 1 .* has compression 'bf16', where rank 0 has"):
        build("bf16" if comm.rank else "int8")


@pytest.mark.ranks(2)
def test_an_unknown_name_is_refused(comm, hvd):
    with pytest.raises(UsageError, match="invalid compression 'int4': use one of none, "):
        build("int4")
