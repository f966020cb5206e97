"""Train ResNet-50 on a folder of classes, and go on from any checkpoint bit for bit."""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hvd_ext.data import Order
from hvd_ext.errors import UsageError
from hvd_ext.events import region
from hvd_ext.files import check_writable, make_folder
from resnet.folder import ClassFolder, ClassPack, Images, load_batches, stack, train_sample
from resnet.model import load_weights, resnet50
from resnet.optimizer import distributed, lr_scale
from training import ranks
from training.log import CsvLog
from training.loop import descend
from training.packs import is_pack, open_pack
from training.run import Run, drain

KIND = "resnet"
COLUMNS = ("epoch", "train_loss", "train_accuracy", "val_loss", "val_accuracy", "lr", "img_per_s")
DECAY_EPOCHS = (30, 60, 80)


class ImageNetTrainer:
    """One rank's part of a run."""

    def __init__(self, args: argparse.Namespace, hvd: ModuleType, program: str) -> None:
        """Read the folders and, on rank 0, the latest checkpoint; nothing is exchanged yet.

        Raises:
            UsageError: folders or checkpoint cannot be used.
        """
        self.args, self.hvd = args, hvd
        self.images = self._open(args.train_dir, program)
        self.held_out = self._open(args.val_dir, program, self.images.classes)
        self.rank_batch = args.batch_size * args.batches_per_allreduce
        self.run = Run(args, hvd, program, KIND, self.rank_batch * hvd.size())
        self.run.resume_hint = ""
        if len(self.images) < self.run.global_batch:
            raise UsageError(
                f"{args.train_dir} holds {len(self.images)} images, fewer than one step "
                f"takes ({self.run.global_batch}): lower --batch-size"
            )
        # Sums of loss and of right answers, and images, of this epoch so far.
        self.sums = torch.zeros(3, dtype=torch.float64)
        torch.manual_seed(args.seed)
        self.model = resnet50(len(self.images.classes), zero_init_residual=True)
        self._resumed = self._read_checkpoint() if self.run.leads else {}
        self.run.follow(Order(len(self.images), args.seed, data=self.images.fingerprint))

    def start(self) -> None:
        """Give every rank the state of rank 0. A collective."""
        args, hvd, run = self.args, self.hvd, self.run
        fingerprints = (self.images.fingerprint, self.held_out.fingerprint)
        ranks.require_equal(hvd, run.program, fingerprints, "the images")
        self.log = None
        with ranks.collective_errors(hvd, run.program):
            if run.leads:
                make_folder(args.log_dir)
                make_folder(self._checkpoint_path(1).parent)
                check_writable(self._checkpoint_path(1))
                self.log = CsvLog(args.log_dir / "log.csv", COLUMNS, resumed_at=run.position.epoch)
        self.layout = ranks.memory_format(args)
        self.model.to(run.device)
        self.lr_scale = lr_scale(args, hvd, run.device) * args.batches_per_allreduce
        sgd = torch.optim.SGD(
            self.model.parameters(), args.base_lr, args.momentum, weight_decay=args.wd
        )
        self.optimizer = distributed(args, hvd, sgd, self.model, args.batches_per_allreduce)
        self.sums = self._resumed.get("sums", self.sums)
        run.share_state(self.model, self.optimizer, self._resumed)
        self._resumed = {}
        self.loader = run.loader(
            self.images,
            hvd.rank(),
            hvd.size(),
            lambda opened, rng: train_sample(opened, args.image_size, rng),
            stack,
        )

    def train(self) -> None:
        """Train to the last epoch, validating and saving after each."""
        position = self.run.position
        while position.epoch < self.args.epochs:
            images_per_second = self._train_epoch()
            self._gather()
            train_loss, train_accuracy = _means(self.hvd.broadcast(self.sums, 0, name="sums"))
            drain(self.optimizer)
            val_loss, val_accuracy = self._validate()
            lr = self._learning_rate(position.epoch + 1)
            position.epoch, position.step = position.epoch + 1, 0
            self.sums.zero_()
            self._save(position.epoch)
            if self.log:
                row = (train_loss, train_accuracy, val_loss, val_accuracy, lr, images_per_second)
                self.log.write(position.epoch, *row)
                print(
                    f"epoch {position.epoch}: loss {train_loss:.4f}, accuracy "
                    f"{train_accuracy:.2%}; validation {val_loss:.4f}, {val_accuracy:.2%}",
                    flush=True,
                )

    def _train_epoch(self) -> float:
        """Take what is left of this epoch's steps; returns images per second, of all ranks."""
        run = self.run
        self.model.train()
        began_s, first = time.perf_counter(), run.position.step
        steps = first + len(self.loader)

        def save() -> None:
            self._gather()
            self._save(run.position.epoch + 1)

        title = f"epoch {run.position.epoch + 1}"
        run.take_steps(title, steps, self._step, lambda loss: "", save)
        images = (run.position.step - first) * run.global_batch
        return images / (time.perf_counter() - began_s)

    def _step(self) -> Tensor:
        args, run = self.args, self.run
        with region("load", kind="io"):
            images, labels = next(self.loader)
            images = images.to(run.device, memory_format=self.layout)
            labels = labels.to(run.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(run.position.samples / run.order.samples)

        def loss(part: Tensor, truth: Tensor) -> Tensor:
            with ranks.autocast(args, run.device):
                logits = self.model(part)
                value = nn.functional.cross_entropy(logits, truth)
                self.sums += _sums(value, logits, truth)
            # Gradients of the parts add up, and are to be the mean over all of them.
            return value / args.batches_per_allreduce

        parts = zip(images.split(args.batch_size), labels.split(args.batch_size), strict=True)
        return descend(self.optimizer, *(partial(loss, *part) for part in parts))

    @torch.inference_mode()
    def _validate(self) -> tuple[float, float]:
        """Mean loss and accuracy, each image counted once by one rank."""
        hvd, held_out, side = self.hvd, self.held_out, self.args.image_size
        self.model.eval()
        mine = range(hvd.rank(), len(held_out), hvd.size())
        size = self.args.val_batch_size
        batches = (mine[k : k + size] for k in range(0, len(mine), size))
        sums = torch.zeros(3, dtype=torch.float64)
        for images, labels in load_batches(
            batches, lambda index: held_out.validation_sample(index, side), self.args.workers
        ):
            truth = labels.to(self.run.device)
            with ranks.autocast(self.args, self.run.device):
                logits = self.model(images.to(self.run.device, memory_format=self.layout))
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

    def _open(self, path: Path, program: str, classes: tuple[str, ...] = ()) -> Images:
        if is_pack(path):
            return ClassPack(open_pack(path, self.hvd, program), classes)
        return ClassFolder.read(path, classes)

    def _gather(self) -> None:
        """Bring to rank 0 what ranks keep apart, so that one checkpoint holds all of it.

        Each rank's batch norm has seen other images; all get the mean of their statistics.
        """
        hvd = self.hvd
        total = hvd.allreduce(self.sums, op=hvd.Sum, name="sums")
        self.sums = total if self.run.leads else torch.zeros_like(total)
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
        self.run.save(self._checkpoint_path(epoch), self.model, self.optimizer, sums=self.sums)

    def _read_checkpoint(self) -> dict[str, Any]:
        """The latest checkpoint, its weights put into the model; or {}."""
        paths = map(self._checkpoint_path, range(self.args.epochs, 0, -1))
        path = next(filter(Path.is_file, paths), None)
        if path is None:
            return {}
        checkpoint = self.run.read_checkpoint(path)
        try:
            load_weights(self.model, checkpoint["model"])
        except RuntimeError as error:
            raise UsageError(
                f"the weights in {path} do not fit ResNet-50 with "
                f"{len(self.images.classes)} classes: name another --checkpoint-format"
            ) from error
        return checkpoint


def _sums(loss: Tensor, logits: Tensor, truth: Tensor) -> Tensor:
    """(3,): sum of the losses, number of right answers, number of images."""
    count = len(truth)
    right = (logits.argmax(1) == truth).sum().item()
    return torch.tensor([loss.item() * count, right, count], dtype=torch.float64)


def _means(sums: Tensor) -> tuple[float, float]:
    loss, right, count = sums
    return float(loss / count), float(right / count)
