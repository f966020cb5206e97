"""torch.compile of what communicates by the backend: the same values as without it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hvd_ext.c10d
from tests.ranks.asserts import parallel_assert
from tests.support.optimizer.learning import Net, batch

pytestmark = [pytest.mark.usefixtures("backend"), pytest.mark.ranks(2)]


def distributed(net):
    return DistributedDataParallel(net)


def attached(net):
    model = DistributedDataParallel(net)
    hvd_ext.c10d.attach(model)
    return model


def sharded(net):
    return fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def losses(model, rank):
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(3):
        x, target = batch(step, rank)
        loss = torch.nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


@pytest.mark.parametrize(
    "wrap", [distributed, *(pytest.param(w, marks=pytest.mark.long) for w in (attached, sharded))]
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_compiled_model_learns_the_same(comm, wrap):
    torch.manual_seed(2)
    net = Net()
    want = losses(wrap(copy.deepcopy(net)), comm.rank)
    for build in (
        lambda: torch.compile(wrap(copy.deepcopy(net)), backend="aot_eager"),
        lambda: wrap(torch.compile(copy.deepcopy(net), backend="aot_eager")),
    ):
        torch.compiler.reset()
        got = losses(build(), comm.rank)
        parallel_assert(comm, got == want and len(set(got)) == 3, (got, want))


def test_collectives_in_a_compiled_function(comm):
    def functions(x):
        total = functional.all_reduce(2 * x, "sum", dist.group.WORLD)
        return functional.all_gather_tensor(total + 1, 0, dist.group.WORLD)

    def calls(x):
        y = 2 * x
        dist.all_reduce(y)
        return y + 1

    torch.compiler.reset()
    own = torch.full((3,), float(comm.rank))
    for function in (functions, calls):
        got = torch.compile(function, backend="aot_eager")(own)
        want = function(own)
        parallel_assert(comm, torch.equal(got, want), (got, want))
