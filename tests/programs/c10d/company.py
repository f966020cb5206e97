"""`company.py BACKEND`: what torch.distributed builds on a backend, and a digest of each result.

Rank 0 prints a line for each; two backends should print the same lines.
"""

from __future__ import annotations

import copy
import hashlib
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import hvd_ext.c10d
from hvd_ext.errors import MismatchError

Tensors = Iterable[torch.Tensor]
FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def network() -> torch.nn.Sequential:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16)]
    return torch.nn.Sequential(*layers)


def train(model: Any, optimizer: Any, steps: int = 6, *, same: bool = False) -> list[torch.Tensor]:
    """Train it; returns its weights. Ranks have different samples, unless `same`."""
    torch.manual_seed(2 if same else 2 + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    return [whole(parameter) for parameter in model.parameters()]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shared_folder() -> str:
    """A new folder of rank 0's, which ends with the program."""
    FOLDERS.append(tempfile.TemporaryDirectory())
    name = [FOLDERS[-1].name]
    dist.broadcast_object_list(name)
    return name[0]


def checkpoints() -> Tensors:
    """Save while training goes on, which communicates too, and load."""
    model = fully_shard(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer)
    folder = shared_folder()
    state = get_state_dict(model, optimizer)
    dcp.save({"model": state[0], "optimizer": state[1]}, checkpoint_id=folder + "/now")
    own = dist.new_group()
    saved = dcp.async_save({"model": state[0]}, checkpoint_id=folder + "/later", process_group=own)
    before = [whole(parameter).clone() for parameter in model.parameters()]
    yield from train(model, optimizer, 20)
    saved.result()
    dist.barrier()
    for name in ("now", "later"):
        dcp.load({"model": state[0]}, checkpoint_id=f"{folder}/{name}")
        after = [whole(parameter) for parameter in model.parameters()]
        assert all(map(torch.equal, before, after))


def tensor_parallel() -> Tensors:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = distribute_tensor(torch.arange(30.0).view(5, 6), mesh, [Shard(0)])
    for placement in (Shard(1), Replicate(), Shard(0)):
        sharded = sharded.redistribute(mesh, [placement])
        yield sharded.full_tensor()
    yield (sharded @ sharded.t()).sum().full_tensor()
    model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    yield from train(model, torch.optim.SGD(model.parameters(), lr=0.1), same=True)
    normed = torch.nn.Sequential(torch.nn.LayerNorm(16), *network())
    plan = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "3": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(normed, mesh, plan)  # type: ignore[arg-type]
    torch.manual_seed(4)
    out = normed(torch.randn(2, 8, 16))
    out.square().sum().backward()
    yield out
    yield from (whole(p.grad) for p in normed.parameters() if p.grad is not None)


def pipelines() -> Tensors:
    size, rank = dist.get_world_size(), dist.get_rank()
    layers = [copy.deepcopy(network()) for _ in range(2 * size)]
    torch.manual_seed(5)
    inputs, targets = torch.randn(8, 16), torch.randn(8, 16)
    for kind, each in ((ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)):
        parts = [rank + size * index for index in range(each)]
        used = [copy.deepcopy(layers[part]) for part in parts]
        stages = [
            PipelineStage(layer, part, each * size, torch.device("cpu"))
            for layer, part in zip(used, parts, strict=True)
        ]
        asked: Any = stages if each > 1 else stages[0]
        schedule: Any = kind(asked, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        if rank == size - 1:
            yield from (schedule.step(target=targets, losses=losses),)
        elif rank:
            schedule.step()
        yield from losses
        yield from (p.grad for layer in used for p in layer.parameters() if p.grad is not None)


def sharded_optimizer() -> Tensors:
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    yield from train(model, optimizer)
    optimizer.consolidate_state_dict(0)
    if dist.get_rank() == 0:
        yield from (state["exp_avg"] for state in optimizer.state_dict()["state"].values())


def local_steps() -> Tensors:
    model = DistributedDataParallel(network())
    state = post_local.PostLocalSGDState(None, dist.new_subgroups(1)[0], start_localSGD_iter=2)
    model.register_comm_hook(state, post_local.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), PeriodicModelAverager(3, warmup_steps=2)
    )
    return train(model, optimizer, 9)


class Checkpointed(torch.nn.Module):
    """Computes its activations again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False)


def compiled() -> Tensors:
    model = DistributedDataParallel(Checkpointed())
    yield from train(torch.compile(model), torch.optim.SGD(model.parameters(), lr=0.1))


assert hvd_ext.c10d


def one_group() -> None:
    """A save on the group that trains: values are right, or an error names both calls."""
    folder = shared_folder()
    try:
        saved = dcp.async_save(network().state_dict(), checkpoint_id=folder)
        for number in range(300):
            total = torch.full((100,), float(number + dist.get_rank()))
            dist.all_reduce(total)
            assert total.unique().tolist() == [2 * number + 1]
        saved.result()
    except MismatchError as error:
        said = str(error)
        assert "all_reduce() of 400 bytes" in said, said
        assert said.count("rank ") == 2, said


torch.set_num_threads(1)
dist.init_process_group(sys.argv[1])
for part in (
    checkpoints,
    tensor_parallel,
    pipelines,
    sharded_optimizer,
    local_steps,
    compiled,
):
    digest = hashlib.sha256()
    for result in part():
        digest.update(result.detach().contiguous().numpy().tobytes())
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, digest.hexdigest()[:16])
    if dist.get_rank() == 0:
        print(f"{part.__name__}: {everyones}", flush=True)
if sys.argv[1] == "hvd_ext":
    one_group()
dist.destroy_process_group()
