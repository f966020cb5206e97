"""Train ResNet-50 on a folder of classes, and go on from any checkpoint bit for bit."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hvd_ext.cli import progress
from hvd_ext.errors import UsageError
from hvd_ext.files import make_folder
from hvprof import region, step
from resnet.folder import ClassFolder, epoch_order, load_batches
from resnet.model import load_weights, resnet50
from resnet.synthetic import lr_scale, wrap
from training import ranks
from training.checkpoint import load_checkpoint, save_checkpoint
from training.log import CsvLog

KIND = "resnet"
COLUMNS = ("epoch", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "lr", "img_per_s")
_HELD = ("model", "optimizer", "epoch", "batch", "sums", "seed", "global_batch", "rng")
DECAY_EPOCHS = (30, 60, 80)


class ImageNetTrainer:
    """One rank's part of a run."""

    def __init__(self, args: argparse.Namespace, hvd: ModuleType, program: str) -> None:
        """Read the folders and, on rank 0, the latest checkpoint; nothing is exchanged yet.

        Raises:
            UsageError: folders or checkpoint cannot be used.
        """
        self.args, self.hvd, self.program = args, hvd, program
        self.leads = hvd.rank() == 0
        self.device = ranks.device(args, hvd)
        self.images = ClassFolder.read(args.train_dir)
        self.held_out = ClassFolder.read(args.val_dir, self.images.classes)
        self.rank_batch = args.batch_size * args.batches_per_allreduce
        self.steps = len(self.images.samples) // (self.rank_batch * hvd.size())
        if self.steps == 0:
            raise UsageError(
                f"{args.train_dir} holds {len(self.images.samples)} images, fewer than one step "
                f"takes ({self.rank_batch * hvd.size()}): lower --batch-size"
            )
        self.epoch, self.batch = 0, 0
        # Sums of loss and of right answers, and images, of this epoch so far.
        self.sums = torch.zeros(3, dtype=torch.float64)
        torch.manual_seed(args.seed)
        self.model = resnet50(len(self.images.classes), zero_init_residual=True)
        self._resumed = self._read_checkpoint() if self.leads else None

    def start(self) -> None:
        """Give every rank the state of rank 0. A collective."""
        args, hvd = self.args, self.hvd
        ranks.require_equal(hvd, self.program, (self.images, self.held_out), "the images")
        self.log = None
        with ranks.collective_errors(hvd, self.program):
            if self.leads:
                make_folder(args.log_dir)
                make_folder(self._checkpoint_path(1).parent)
                self.log = CsvLog(args.log_dir / "log.csv", COLUMNS, resumed_at=self.epoch)
        self.layout = ranks.memory_format(args)
        self.model.to(self.device)
        self.lr_scale = lr_scale(args, hvd, self.device) * args.batches_per_allreduce
        self.optimizer = wrap(
            args,
            hvd,
            torch.optim.SGD(
                self.model.parameters(), args.base_lr, args.momentum, weight_decay=args.wd
            ),
            self.model,
            args.batches_per_allreduce,
        )
        resumed = self._resumed
        self.epoch, self.batch, rng = hvd.broadcast_object(
            (self.epoch, self.batch, resumed and resumed["rng"]), root_rank=0
        )
        if rng is not None:
            if resumed:
                self.optimizer.load_state_dict(resumed["optimizer"])
                self.sums = resumed["sums"]
            hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
            torch.set_rng_state(rng)
        # After the optimizer's state, whose broadcast may move the parameters.
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self._resumed = None

    def train(self) -> None:
        """Train to the last epoch, validating and saving after each."""
        while self.epoch < self.args.epochs:
            images_per_second = self._train_epoch()
            self._gather()
            train_loss, train_accuracy = _means(self.hvd.broadcast(self.sums, 0, name="sums"))
            val_loss, val_accuracy = self._validate()
            lr = self._learning_rate(self.epoch + 1)
            self.epoch, self.batch = self.epoch + 1, 0
            self.sums.zero_()
            self._save(self.epoch)
            if self.log:
                row = (train_loss, train_accuracy, val_loss, val_accuracy, lr, images_per_second)
                self.log.write(self.epoch, *row)
                print(
                    f"epoch {self.epoch}: loss {train_loss:.4f}, accuracy {train_accuracy:.2%}; "
                    f"validation {val_loss:.4f}, {val_accuracy:.2%}",
                    flush=True,
                )

    def _train_epoch(self) -> float:
        """Take what is left of this epoch's steps; returns images per second, of all ranks."""
        args, hvd = self.args, self.hvd
        self.model.train()
        began, first = time.perf_counter(), self.batch
        title = f"epoch {self.epoch + 1}"
        with progress(title, self.steps, shown=self.leads) as advance:
            batches = load_batches(self._batches(), self._load, args.workers)
            while (batch := _next(batches)) is not None:
                images, labels = batch
                self._step(
                    images.to(self.device, memory_format=self.layout), labels.to(self.device)
                )
                self.batch += 1
                due = args.checkpoint_every and self.batch % args.checkpoint_every == 0
                if due and self.batch < self.steps:
                    with region("checkpoint", kind="io"):
                        self._gather()
                        self._save(self.epoch + 1)
                advance(self.batch, "")
                step()
        images = (self.batch - first) * self.rank_batch * hvd.size()
        return images / (time.perf_counter() - began)

    def _step(self, images: Tensor, labels: Tensor) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(self.epoch + self.batch / self.steps)
        self.optimizer.zero_grad()
        for part, truth in zip(
            images.split(self.args.batch_size), labels.split(self.args.batch_size), strict=True
        ):
            with region("forward"), ranks.autocast(self.args, self.device):
                logits = self.model(part)
                loss = nn.functional.cross_entropy(logits, truth)
                self.sums += _sums(loss, logits, truth)
            with region("backward"):
                # Gradients of the parts add up, and are to be the mean over all of them.
                (loss / self.args.batches_per_allreduce).backward()
        with region("update"):
            self.optimizer.step()

    @torch.inference_mode()
    def _validate(self) -> tuple[float, float]:
        """Mean loss and accuracy, each image counted once by one rank."""
        hvd, held_out, side = self.hvd, self.held_out, self.args.image_size
        self.model.eval()
        mine = range(hvd.rank(), len(held_out.samples), hvd.size())
        size = self.args.val_batch_size
        batches = (mine[k : k + size] for k in range(0, len(mine), size))
        sums = torch.zeros(3, dtype=torch.float64)
        for images, labels in load_batches(
            batches, lambda index: held_out.validation_sample(index, side), self.args.workers
        ):
            truth = labels.to(self.device)
            with ranks.autocast(self.args, self.device):
                logits = self.model(images.to(self.device, memory_format=self.layout))
                loss = nn.functional.cross_entropy(logits, truth)
            sums += _sums(loss, logits, truth)
        return _means(hvd.allreduce(sums, op=hvd.Sum, name="validation"))

    def _learning_rate(self, epoch: float) -> float:
        """A ramp from the rate of one rank to that of the world, then steps down."""
        warmup = self.args.warmup_epochs
        if epoch < warmup:
            return float(self.args.base_lr * (1 + epoch / warmup * (self.lr_scale - 1)))
        decay = sum(epoch >= edge for edge in DECAY_EPOCHS)
        return float(self.args.base_lr * self.lr_scale * 0.1**decay)

    def _batches(self) -> Iterator[NDArray[np.int64]]:
        """Indices of this rank's images, for each step that is left of the epoch."""
        order = epoch_order(len(self.images.samples), self.args.seed, self.epoch)
        for batch in range(self.batch, self.steps):
            first = (batch * self.hvd.size() + self.hvd.rank()) * self.rank_batch
            yield order[first : first + self.rank_batch]

    def _load(self, index: int) -> tuple[NDArray[np.uint8], int]:
        args = self.args
        return self.images.train_sample(index, args.image_size, args.seed, self.epoch)

    def _gather(self) -> None:
        """Bring to rank 0 what ranks keep apart, so that one checkpoint holds all of it.

        Each rank's batch norm has seen other images; all get the mean of their statistics.
        """
        hvd = self.hvd
        total = hvd.allreduce(self.sums, op=hvd.Sum, name="sums")
        self.sums = total if self.leads else torch.zeros_like(total)
        statistics = [b for b in self.model.buffers() if b.is_floating_point()]
        flat = torch.cat([buffer.flatten() for buffer in statistics])
        mean = hvd.allreduce(flat, name="statistics")
        for buffer, part in zip(
            statistics, mean.split([b.numel() for b in statistics]), strict=True
        ):
            buffer.copy_(part.view_as(buffer))

    def _checkpoint_path(self, epoch: int) -> Path:
        return Path(self.args.checkpoint_format.format(epoch=epoch))

    def _save(self, epoch: int) -> None:
        with ranks.collective_errors(self.hvd, self.program):
            if self.leads:
                save_checkpoint(
                    self._checkpoint_path(epoch),
                    {
                        "kind": KIND,
                        "model": self.model.state_dict(),
                        "optimizer": self.optimizer.state_dict(),
                        "epoch": self.epoch,
                        "batch": self.batch,
                        "global_batch": self.rank_batch * self.hvd.size(),
                        "sums": self.sums,
                        "seed": self.args.seed,
                        "rng": torch.get_rng_state(),
                    },
                )

    def _read_checkpoint(self) -> dict[str, Any] | None:
        """The latest checkpoint, if there is one, its weights put into the model."""
        for epoch in range(self.args.epochs, 0, -1):
            path = self._checkpoint_path(epoch)
            if path.is_file():
                break
        else:
            return None
        checkpoint = load_checkpoint(path, KIND, _HELD)
        asked = {"seed": self.args.seed}
        if checkpoint["batch"]:
            asked["global_batch"] = self.rank_batch * self.hvd.size()
        for name, value in asked.items():
            if checkpoint[name] != value:
                raise UsageError(
                    f"{path} was written with {name} {checkpoint[name]}, asked for is {value}: "
                    "resume with the flags that it was started with"
                )
        try:
            load_weights(self.model, checkpoint["model"])
        except RuntimeError as error:
            raise UsageError(
                f"the weights in {path} do not fit ResNet-50 with "
                f"{len(self.images.classes)} classes: name another --checkpoint-format"
            ) from error
        self.epoch, self.batch = checkpoint["epoch"], checkpoint["batch"]
        return checkpoint


def _next(batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """The next batch, or None after the last; what it has to be waited for is I/O."""
    with region("load", kind="io"):
        return next(batches, None)


def _sums(loss: Tensor, logits: Tensor, truth: Tensor) -> Tensor:
    """(3,): sum of the losses, number of right answers, number of images."""
    count = len(truth)
    right = (logits.argmax(1) == truth).sum().item()
    return torch.tensor([loss.item() * count, right, count], dtype=torch.float64)


def _means(sums: Tensor) -> tuple[float, float]:
    loss, right, count = sums.tolist()
    return loss / count, right / count
