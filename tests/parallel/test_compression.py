"""Compression between nodes: what is learnt, what is kept, and what one node has of it."""

from __future__ import annotations

import copy
import hashlib
import re

import pytest
import torch
import torch.nn.functional as F

import hvd_ext.torch
from hvd_ext.arena import inter_node
from hvd_ext.compression import codec, powersgd
from hvd_ext.errors import MismatchError, UsageError
from hvd_ext.torch import lifecycle
from tests.learning import Net, batch, flat
from tests.other_codec import SCALAR, compile_codec
from tests.pretended_nodes import pretend
from tests.ranks.asserts import assert_same_bits, parallel_assert

FORMATS = ("bf16", "fp16", "int8", "powersgd:rank=2")


@pytest.fixture
def nodes(comm, monkeypatch):
    """`nodes(k)`: from now on each k ranks are a node."""

    def of(ranks_per_node):
        pretended = pretend(comm, ranks_per_node)
        monkeypatch.setattr(lifecycle, "topology", lambda: pretended)

    return of


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
@pytest.mark.parametrize("ranks_per_node", [1, 2])
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
    # So small a model is nearly of that rank.
    assert losses[-1] == pytest.approx(exact[-1], rel=0.3 if "powersgd" in compression else 0.1)
    parallel_assert(comm, not (flat(model) == flat(expected)).all())
    said = optimizer.explain()
    assert f"compression: {compression}" in said
    assert "coding takes " in said
    assert "exposed in the last step: " in said
    kept = re.search(r"not sent yet, on this node: (\S+) of the last sum's length", said)
    assert (kept is not None and float(kept[1]) > 0) == ("16" not in compression)


@pytest.mark.ranks(4, env={"HVD_EXT_BUCKET_BYTES": "2 KiB"})
@pytest.mark.parametrize("compression", FORMATS)
def test_two_runs_repeat_to_the_bit(comm, hvd, nodes, compression):
    nodes(1)
    digests = []
    for _ in range(2):
        model, optimizer = build(compression)
        train(model, optimizer, 12)
        digests.append(hashlib.sha256(flat(model).tobytes()).hexdigest())
    assert digests[0] == digests[1]


@pytest.mark.ranks(2, 4, env={"HVD_EXT_BUCKET_BYTES": "2 KiB"})
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


@pytest.mark.ranks(2)
def test_no_block_crosses_two_parameters(comm, hvd, nodes, monkeypatch):
    nodes(1)
    check_parameters_have_blocks_of_their_own(comm)
    monkeypatch.setattr(inter_node, "_runs", across_parameters)
    with pytest.raises(AssertionError):
        check_parameters_have_blocks_of_their_own(comm)


@pytest.mark.ranks(2)
def test_nodes_of_other_cpus_have_the_same_bits(comm, hvd, nodes, monkeypatch, tmp_path):
    nodes(1)
    if comm.rank == 1:
        other = compile_codec(tmp_path, SCALAR)
        monkeypatch.setattr(codec, "library", lambda: other)
        monkeypatch.setattr(powersgd, "library", lambda: other)
    for compression in ("int8", "bf16", "powersgd:rank=2"):
        model, optimizer = build(compression)
        train(model, optimizer, 7)
        assert_same_bits(comm, flat(model), compression)


@pytest.mark.ranks(2)
def test_laying_the_buckets_anew_loses_nothing(comm, hvd, nodes):
    nodes(1)
    model, optimizer = build("int8")
    train(model, optimizer, 3)
    optimizer.drain()
    before = optimizer.drained["residuals"]
    optimizer._reducer._rebuild_buckets()
    optimizer.drain()
    for index, tensor in before.items():
        assert torch.equal(optimizer.drained["residuals"][index], tensor)


@pytest.mark.ranks(2)
def test_a_state_without_what_is_unsent_says_so(comm, hvd, nodes, caplog):
    nodes(1)
    model, optimizer = build("int8")
    train(model, optimizer, 2)
    optimizer.state_dict()
    assert "call optimizer.drain() on all ranks before" in caplog.text


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


@pytest.mark.ranks(2, env={"HVD_EXT_COMPRESSION": "bf16"})
def test_the_variable_counts_where_the_script_names_none(comm, hvd, nodes):
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
