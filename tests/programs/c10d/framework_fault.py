"""`framework_fault.py FRAMEWORK HOW`: rank 1 of a framework's training fails in its 4th step."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from typing import Any

import torch

framework, how = sys.argv[1:]
SAMPLES = [(torch.ones(4), torch.ones(1))] * 40
torch.set_num_threads(1)


class Net(torch.nn.Module):
    """Fails at its 4th forward pass on rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.step = torch.nn.Linear(4, 1), 0

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        self.step += 1
        if self.step == 4 and os.environ["LOCAL_RANK"] == "1":
            fail()
        return {"loss": (self.layer(inputs) - targets).square().mean()}


def fail() -> None:
    if how in ("killed", "stopped"):
        os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    elif how == "raising":
        raise ValueError("loss is NaN")
    time.sleep(60)


def accelerate(net: Any) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, batches = accelerator.prepare(
        net, optimizer, torch.utils.data.DataLoader(SAMPLES, batch_size=2)
    )
    for inputs, targets in batches:
        accelerator.backward(net(inputs, targets)["loss"])
        optimizer.step()
        optimizer.zero_grad()


def transformers(net: Any) -> None:
    from transformers import Trainer, TrainingArguments

    samples = [{"inputs": inputs, "targets": targets} for inputs, targets in SAMPLES]
    with tempfile.TemporaryDirectory() as folder:
        asked = TrainingArguments(
            output_dir=folder, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
            per_device_train_batch_size=2,
        )  # fmt: skip
        Trainer(model=net, args=asked, train_dataset=samples).train()


def lightning(net: Any) -> None:
    import lightning as framework

    class Module(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, _: int) -> Any:
            return self.net(*batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    framework.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(Module(), torch.utils.data.DataLoader(SAMPLES, batch_size=2))  # fmt: skip


{"accelerate": accelerate, "transformers": transformers, "lightning": lightning}[framework](Net())
print("all steps done")
