"""FSDP2 in shared memory: losses and weights have Gloo's bits at 2 ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from hvd_ext.c10d import fsdp
from hvd_ext.c10d.collectives import SETTING, describe
from hvd_ext.c10d.ranks import topology_of
from hvd_ext.engine.one_node import OneNode
from hvd_ext.errors import UsageError
from hvd_ext.shm.block import Block
from tests.ranks.asserts import parallel_assert
from tests.support.arena.pretended_nodes import pretend
from tests.support.optimizer.learning import Net, batch

pytestmark = pytest.mark.usefixtures("gloo")


def train(comm, used, steps=4, **options):
    """Losses, and this rank's shards of the weights in the end."""
    torch.manual_seed(3)
    model = Net()
    mesh = init_device_mesh("cpu", (comm.size,))
    for layer in (model.hidden, model.out, model):
        fully_shard(layer, mesh=mesh, **options)
    if used:
        fsdp.use(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        x, target = batch(step, comm.rank)
        loss = torch.nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.to_local().detach().clone() for p in model.parameters()]


def same(a, b):
    return a[0] == b[0] and all(torch.equal(x, y) for x, y in zip(a[1], b[1], strict=True))


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reshard_after_forward": False},
        {"mp_policy": MixedPrecisionPolicy(torch.float32, torch.bfloat16)},
    ],
    ids=["sharded", "kept", "bfloat16"],
)
def test_losses_and_weights_have_gloos_bits(comm, options):
    made = dict(fsdp._placed)
    want, got = train(comm, False, **options), train(comm, True, **options)
    parallel_assert(comm, same(want, got), (want[0], got[0]))
    parallel_assert(comm, len(set(got[0])) == len(got[0]), got[0])
    parallel_assert(comm, len(fsdp._placed) >= max(1, len(made)), "not in shared memory")
    parallel_assert(comm, None not in fsdp._placed.values(), "not in shared memory")


@pytest.mark.long
@pytest.mark.ranks(3)
def test_on_three_ranks_weights_are_near_gloos(comm):
    want, got = train(comm, False), train(comm, True)
    near = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(want[1], got[1], strict=True))
    parallel_assert(comm, near, (want[0], got[0]))


@pytest.mark.ranks(2, 3)
def test_on_several_nodes_weights_are_near_gloos(comm, monkeypatch):
    """On 3 ranks the nodes have two and one."""
    pretended = pretend(comm, comm.size - 1)
    monkeypatch.setattr(fsdp, "topology_of", lambda group: pretended)
    monkeypatch.setattr(fsdp, "_placed", {})
    want, got = train(comm, False), train(comm, True)
    near = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(want[1], got[1], strict=True))
    parallel_assert(comm, near, (want[0], got[0]))
    parallel_assert(comm, None not in fsdp._placed.values(), "left to the group")


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("count", [0, 1, 5, 1000, 300_001, 600_000])
def test_collectives_of_any_length(comm, count):
    staged = OneNode(topology_of(dist.group.WORLD), 60, describe, SETTING)
    for seed in range(3):
        every = [
            np.random.default_rng([seed, rank]).integers(-99, 99, comm.size * count).astype("f4")
            for rank in range(comm.size)
        ]
        own = every[comm.rank]
        out = np.empty(comm.size * own.nbytes, np.uint8)
        staged.all_gather(Block.of(out), Block.of(own))
        parallel_assert(comm, np.array_equal(out.view("f4"), np.concatenate(every)), "gathered")
        summed = np.empty(count, np.float32)
        staged.reduce_scatter(Block.of(summed), Block.of(own), "float32", 0.5)
        want = sum(every)[comm.rank * count :][:count] * 0.5
        parallel_assert(comm, np.array_equal(summed, want), "summed")


@pytest.mark.ranks(1)
def test_a_model_that_is_not_sharded_is_refused():
    with pytest.raises(UsageError, match="fully_shard"):
        fsdp.use(torch.nn.Linear(2, 2))
