"""`frameworks_on_hosts.py FRAMEWORK ddp|sharded gloo|hvd_ext`: a training on MPI's ranks.

Accelerate trains a ResNet; Transformers a GPT, with DDP; Lightning a BERT with DDP, and a GPT with
FSDP2.
Rank 0 prints the losses.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from mpi4py import MPI
from torch.distributed.fsdp import fully_shard

from tests.support.c10d.small_nets import ResNet, Tokens, bert, gpt, pictures

framework, kind, backend = sys.argv[1:]
STEPS, BATCH = 6, 4
world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)


def tell_as_torchrun() -> None:
    """Set the variables that the frameworks read."""
    host = socket.gethostname()
    port = 0
    if world.rank == 0:
        with socket.create_server((host, 0)) as server:
            port = server.getsockname()[1]
    place, port = world.bcast((host, port))
    os.environ |= {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(node.rank),
        "LOCAL_WORLD_SIZE": str(node.size),
        "NODE_RANK": str(world.rank // node.size),
        "GROUP_RANK": str(world.rank // node.size),
        "MASTER_ADDR": place,
        "MASTER_PORT": str(port),
    }


def accelerate() -> Iterator[float]:
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin

    if kind == "sharded":
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
        accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    else:
        accelerator = Accelerator(cpu=True)
    samples: Any = pictures(STEPS * BATCH * world.size)
    net: Any = ResNet()
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1)
    batches: Any = torch.utils.data.DataLoader(samples, batch_size=BATCH)
    net, optimizer, batches = accelerator.prepare(net, optimizer, batches)
    for _ in range(2):
        for inputs, wanted in batches:
            loss = torch.nn.functional.cross_entropy(net(inputs), wanted)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            yield accelerator.reduce(loss.detach(), "mean").item()


def transformers() -> Iterator[float]:
    import transformers as framework

    with tempfile.TemporaryDirectory() as folder:
        asked = framework.TrainingArguments(
            output_dir=folder, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
            per_device_train_batch_size=BATCH, num_train_epochs=2, logging_steps=1,
            learning_rate=0.01,
        )  # fmt: skip
        trainer = framework.Trainer(gpt(), asked, train_dataset=Tokens(STEPS * BATCH * world.size))
        trainer.train()
    yield from (entry["loss"] for entry in trainer.state.log_history if "loss" in entry)


def lightning() -> Iterator[float]:
    import lightning as framework
    from lightning.pytorch.strategies import ModelParallelStrategy

    losses: list[float] = []

    class Module(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = gpt() if kind == "sharded" else bert()

        def configure_model(self) -> None:
            if kind == "sharded":
                fully_shard(self.net)

        def training_step(self, batch: Any, _: int) -> Any:
            loss = self.net(**batch).loss
            losses.append(self.all_gather(loss.detach()).mean().item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    batches = torch.utils.data.DataLoader(Tokens(STEPS * BATCH * world.size), batch_size=BATCH)
    strategy: Any = ModelParallelStrategy(world.size, 1) if kind == "sharded" else "ddp"
    framework.Trainer(
        accelerator="cpu", devices=node.size, num_nodes=world.size // node.size,
        strategy=strategy, max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(Module(), batches)  # fmt: skip
    yield from losses


torch.set_num_threads(1)
tell_as_torchrun()
if backend == "hvd_ext":
    import hvd_ext.c10d

    hvd_ext.c10d.install()
torch.manual_seed(1)
trained = {"accelerate": accelerate, "transformers": transformers, "lightning": lightning}
found = list(trained[framework]())
if world.rank == 0:
    print("losses", *found, flush=True)
torch.distributed.destroy_process_group()
