"""`framework_training.py FRAMEWORK ddp|sharded FOLDER`: a whole training with bf16, under torchrun.

It accumulates gradients, clips them, evaluates, stops early and keeps checkpoints; a second
training resumes from one of them. Rank 0 prints the losses, and a digest of the weights of each.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tests.support.c10d.small_nets import ResNet, Tokens, bert, gpt, pictures

framework, kind = sys.argv[1:3]
FOLDER = Path(sys.argv[3])
SHARDED = kind == "sharded"
STEPS, BATCH, EPOCHS, ACCUMULATED = 6, 4, 6, 2
# The training stops after three epochs, and the second one resumes after the first epoch.
STOPPED = 3
LOCAL_RANK, SIZE = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])


def digest(net: torch.nn.Module) -> str:
    """Of the whole weights; collective."""
    found = hashlib.sha256()
    for parameter in net.parameters():
        whole = getattr(parameter, "full_tensor", parameter.clone)()
        found.update(whole.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return f"weights:{found.hexdigest()[:16]}"


def accelerate() -> Iterator[object]:
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin

    options = {"cpu": True, "mixed_precision": "bf16", "gradient_accumulation_steps": ACCUMULATED}
    if SHARDED:
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
        accelerator = Accelerator(fsdp_plugin=plugin, **options)
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    else:
        accelerator = Accelerator(**options)
    net: Any = ResNet()
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    samples = [pictures(STEPS * BATCH * SIZE), pictures(30)]  # the last batches are uneven
    net, optimizer, batches, checked = accelerator.prepare(
        net, optimizer, *(DataLoader(each, batch_size=BATCH) for each in samples)
    )

    def epoch() -> float:
        net.train()
        for inputs, wanted in batches:
            with accelerator.accumulate(net):
                accelerator.backward(cross_entropy(net(inputs), wanted))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        net.eval()
        with torch.no_grad():
            found = [
                accelerator.gather_for_metrics(cross_entropy(net(x), y, reduction="none"))
                for x, y in checked
            ]
        assert sum(map(len, found)) == 30
        return torch.cat(found).mean().item()

    def states() -> dict[str, Any]:
        found = get_state_dict(net, optimizer.optimizer)
        return dict(zip(("model_state_dict", "optim_state_dict"), found, strict=True))

    def save() -> None:
        if SHARDED:  # its own fails with Gloo, too
            dcp.save(states(), checkpoint_id=FOLDER)
        else:
            accelerator.save_state(str(FOLDER))

    def load() -> None:
        if SHARDED:
            dcp.load(kept := states(), checkpoint_id=FOLDER)
            set_state_dict(net, optimizer.optimizer, **kept)
        else:
            accelerator.load_state(str(FOLDER))

    for number in range(1, EPOCHS):
        yield epoch()
        if number == 1:
            save()
        if number == STOPPED and not accelerator.is_main_process:
            accelerator.set_trigger()  # one rank stops all
        if accelerator.check_trigger():
            break
    assert number == STOPPED
    yield digest(net)
    load()
    for _ in range(1, STOPPED):
        yield epoch()
    yield digest(net)


def transformers() -> Iterator[object]:
    from transformers import EarlyStoppingCallback, GPT2LMHeadModel, Trainer, TrainingArguments
    from transformers.distributed import DistributedConfig

    # Its Trainer resumes no model that is sharded.
    kept = "no" if SHARDED else "epoch"
    asked = TrainingArguments(
        output_dir=str(FOLDER), use_cpu=True, bf16=True, report_to=[], disable_tqdm=True,
        per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATED,
        num_train_epochs=EPOCHS, logging_steps=1, learning_rate=0.01, eval_strategy="epoch",
        save_strategy=kept, load_best_model_at_end=not SHARDED, metric_for_best_model="eval_loss",
    )  # fmt: skip
    net = gpt()
    samples = {"train_dataset": Tokens(STEPS * BATCH * SIZE), "eval_dataset": Tokens(30)}
    if SHARDED:
        if LOCAL_RANK == 0:
            net.save_pretrained(FOLDER)
        dist.barrier()
        net = GPT2LMHeadModel.from_pretrained(
            FOLDER, distributed_config=DistributedConfig(fsdp_size=SIZE)
        )
    for number, resumed in enumerate((None,) if SHARDED else (None, 1)):
        # No loss is better by so much.
        stop = EarlyStoppingCallback(STOPPED - 1, 10.0)
        trainer = Trainer(net if number == 0 else gpt(), asked, **samples, callbacks=[stop])
        folder = resumed and str(FOLDER / f"checkpoint-{resumed * STEPS // ACCUMULATED}")
        trainer.train(resume_from_checkpoint=folder)
        assert trainer.state.epoch == STOPPED
        for entry in trainer.state.log_history:
            yield from (entry[name] for name in ("loss", "grad_norm", "eval_loss") if name in entry)
        yield digest(trainer.model)


def lightning() -> Iterator[object]:
    from lightning import LightningModule, Trainer
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    from lightning.pytorch.strategies import ModelParallelStrategy

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.found = bert(), []

        def configure_model(self) -> None:
            if SHARDED:
                fully_shard(self.net)

        def training_step(self, batch: Any, _: int) -> Any:
            loss = self.net(**batch).loss
            self.found.append(self.all_gather(loss.detach()).mean().item())
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("checked", self.net(**batch).loss, sync_dist=True)

        def on_validation_epoch_end(self) -> None:
            self.found.append(self.trainer.callback_metrics["checked"].item())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    batches = [DataLoader(Tokens(n), batch_size=BATCH) for n in (STEPS * BATCH * SIZE, 30)]
    for resumed in (None, FOLDER / "epoch=0.ckpt"):
        strategy: Any = ModelParallelStrategy(SIZE, 1) if SHARDED else "ddp"
        stop = EarlyStopping("checked", min_delta=10.0, patience=STOPPED - 1)
        keep = ModelCheckpoint(FOLDER, "{epoch}", save_top_k=-1)
        trainer = Trainer(
            accelerator="cpu", devices=SIZE, strategy=strategy, precision="bf16-mixed",
            accumulate_grad_batches=ACCUMULATED, gradient_clip_val=1.0, max_epochs=EPOCHS,
            callbacks=[stop, *([keep] if resumed is None else [])], logger=False,
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
            enable_checkpointing=resumed is None,
        )  # fmt: skip
        module = Module()
        trainer.fit(module, *batches, ckpt_path=resumed)
        assert trainer.current_epoch == STOPPED
        yield from module.found
        yield digest(module)


def fabric() -> Iterator[object]:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import ModelParallelStrategy

    strategy: Any = "ddp"
    if SHARDED:
        strategy = ModelParallelStrategy(
            lambda net, mesh: fully_shard(net, mesh=mesh["data_parallel"]), SIZE, 1
        )
    made = Fabric(accelerator="cpu", devices=SIZE, strategy=strategy, precision="bf16-mixed")
    made.launch()
    net: Any = made.setup_module(ResNet())
    optimizer = made.setup_optimizers(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    batches = made.setup_dataloaders(DataLoader(pictures(STEPS * BATCH * SIZE), batch_size=BATCH))

    def epoch() -> Iterator[float]:
        for number, (inputs, wanted) in enumerate(batches, 1):
            waits = number % ACCUMULATED != 0
            with made.no_backward_sync(net, enabled=waits):
                loss = cross_entropy(net(inputs), wanted)
                made.backward(loss)
            yield made.all_reduce(loss.detach()).item()
            if not waits:
                made.clip_gradients(net, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()

    state = {"net": net, "optimizer": optimizer}
    yield from epoch()
    made.save(FOLDER / "state", state)
    for _ in range(2):
        yield from epoch()
        yield digest(net)
        made.load(FOLDER / "state", state)


torch.set_num_threads(1)
torch.manual_seed(1)
trained = {
    "accelerate": accelerate,
    "transformers": transformers,
    "lightning": lightning,
    "fabric": fabric,
}
found = list(trained[framework]())
if LOCAL_RANK == 0:
    print("found", *found, flush=True)
dist.destroy_process_group()
