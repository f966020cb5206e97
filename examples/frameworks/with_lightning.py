"""Lightning on hvd_ext: the losses and weights are those of Gloo.

Run it: python examples/frameworks/with_lightning.py
"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import hvd_ext.c10d

hvd_ext.c10d.install()  # before Lightning makes the process group


class Sum(lightning.LightningModule):
    """Learns to add three of twenty numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
        )

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        loss = (self.network(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


lightning.seed_everything(1)
x = torch.randn(512, 20)
samples = DataLoader(TensorDataset(x, x[:, :3].sum(1, keepdim=True)), batch_size=16, shuffle=True)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=4, logger=False,
    enable_checkpointing=False, enable_progress_bar=False,
)  # fmt: skip
trainer.fit(Sum(), samples)
if trainer.is_global_zero:
    print(f"loss {trainer.callback_metrics['loss'].item():.6f}")
