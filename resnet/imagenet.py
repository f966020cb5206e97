"""Train ResNet on a folder of classes, and go on from any checkpoint bit for bit."""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hvd_ext.data import Order
from hvd_ext.errors import UsageError
from hvd_ext.events import region
from hvd_ext.files import check_writable, make_folder
from resnet.folder import Opened, Sample, centred, normalised, read_images, stack, train_sample
from resnet.model import KIND, MODELS
from resnet.optimizer import distributed, learning_rate, sgd
from resnet.validation import describe, latest, means, sums, validate
from resnet.weights import load_weights, start_from
from training import ranks
from training.log import CsvLog, tensorboard
from training.loop import descend
from training.run import Run, drain

COLUMNS = (
    *("epoch", "train_loss", "train_accuracy", "train_top5"),
    *("val_loss", "val_accuracy", "val_top5", "lr", "img_per_s"),
)


class ImageNetTrainer:
    """One rank's part of a run."""

    def __init__(self, args: argparse.Namespace, hvd: ModuleType, program: str) -> None:
        """List the images and, on rank 0, read weights or the latest checkpoint. A collective.

        Raises:
            UsageError: images, weights or checkpoint cannot be used.
        """
        self.args, self.hvd = args, hvd
        self.images = read_images(args.train_dir, hvd, program, (), args)
        classes = self.images.classes
        self.held_out = read_images(args.val_dir, hvd, program, classes, args)
        self.rank_batch = args.batch_size * args.batches_per_allreduce
        self.run = Run(args, hvd, program, KIND, self.rank_batch * hvd.size())
        self.run.resume_hint = ""
        if len(self.images) < self.run.global_batch:
            raise UsageError(
                f"{args.train_dir} holds {len(self.images)} images, fewer than one step "
                f"takes ({self.run.global_batch}): lower --batch-size"
            )
        # What `validation.sums` gave in this epoch so far.
        self.sums = torch.zeros(4, dtype=torch.float64)
        torch.manual_seed(args.seed)
        self.model = MODELS[args.model](len(self.images.classes), zero_init_residual=True)
        self._resumed = self._read_checkpoint() if self.run.leads else {}
        self.run.follow(Order(len(self.images), args.seed, data=self.images.fingerprint))

    def start(self) -> None:
        """Give every rank the state of rank 0. A collective."""
        args, hvd, run = self.args, self.hvd, self.run
        self.log = None
        with ranks.collective_errors(hvd, run.program):
            if run.leads:
                make_folder(args.log_dir)
                make_folder(self._checkpoint_path(1).parent)
                check_writable(self._checkpoint_path(1))
                at = run.position.epoch
                board = tensorboard(args.tensorboard, at)
                self.log = CsvLog(args.log_dir / "log.csv", COLUMNS, resumed_at=at, board=board)
        self.model.to(run.device)
        self.rate = learning_rate(args, hvd, run.device)
        self.optimizer = distributed(
            args, hvd, sgd(args, self.model), self.model, args.batches_per_allreduce
        )
        self.sums = self._resumed.get("sums", self.sums).to(run.device)
        run.share_state(self.model, self.optimizer, self._resumed)
        self._resumed = {}
        side = args.image_size

        def transform(opened: Opened, rng: np.random.Generator) -> Sample:
            return train_sample(opened, side, rng) if args.augment else centred(opened, side)

        self.loader = run.loader(self.images, hvd.rank(), hvd.size(), transform, stack)

    def train(self) -> None:
        """Train to the last epoch, validating and saving after each."""
        run, args = self.run, self.args
        position = run.position
        if run.leads and position.epoch == args.epochs:
            print(f"{run.program}: nothing to do: {self._checkpoint_path(args.epochs)} is the last")
        elif run.leads:
            print(
                f"{run.hvd.size()} ranks, batch {run.global_batch} of all, {self.rate}", flush=True
            )
        while position.epoch < args.epochs:
            images_per_second = self._train_epoch()
            self._gather()
            trained = means(self.hvd.broadcast(self.sums.cpu(), 0, name="sums"))
            drain(self.optimizer)
            with region("validate"):
                found = validate(self.model, self.held_out, args, self.hvd, run.device)
            # Rank 0's, where every rank keeps to itself.
            found = self.hvd.broadcast_object(found, root_rank=0, name="figures")
            position.epoch, position.step = position.epoch + 1, 0
            self.sums.zero_()
            improved = run.improves(found["accuracy"], higher_is_better=True)
            self._save(self._checkpoint_path(position.epoch))
            if improved:
                self._save(args.log_dir / "best.pt")
            if self.log:
                lr = self.optimizer.param_groups[0]["lr"]
                figures = (*trained.values(), *found.values())
                self.log.write(position.epoch, *figures, lr, images_per_second)
                print(
                    f"epoch {position.epoch}: {describe(trained)}; validation {describe(found)}",
                    flush=True,
                )
                if args.keep:
                    self._checkpoint_path(position.epoch - args.keep).unlink(missing_ok=True)
        self.loader.close()

    def _train_epoch(self) -> float:
        """Take what is left of this epoch's steps; returns images per second, of all ranks."""
        run, args = self.run, self.args
        self.model.train()
        began_s, first = time.perf_counter(), run.position.step
        steps = first + len(self.loader)

        def rate() -> float:
            taken = (run.position.step - first) * run.global_batch
            return taken / (time.perf_counter() - began_s)

        def note(loss: Tensor) -> str:
            if not run.due(args.log_every):
                return ""
            return f"loss {loss.item():.4f} on rank 0  {rate():.1f} images/s"

        def save() -> None:
            self._gather()
            self._save(self._checkpoint_path(run.position.epoch + 1))

        run.take_steps(f"epoch {run.position.epoch + 1}", steps, self._step, note, save)
        return rate()

    def _step(self) -> Tensor:
        args, run = self.args, self.run
        with region("load", kind="io"):
            images, labels = next(self.loader)
            images = images.to(run.device, memory_format=ranks.memory_format(args))
            labels = labels.to(run.device)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate.at(run.position.samples / run.order.samples)

        def loss(part: Tensor, truth: Tensor) -> Tensor:
            with ranks.autocast(args, run.device):
                logits = self.model(normalised(part))
                value = nn.functional.cross_entropy(
                    logits, truth, label_smoothing=args.label_smoothing
                )
                self.sums += sums(value, logits, truth)
            # Gradients of the parts add up, and are to be the mean over all of them.
            return value / args.batches_per_allreduce

        parts = zip(images.split(args.batch_size), labels.split(args.batch_size), strict=True)
        return descend(self.optimizer, *(partial(loss, *part) for part in parts))

    def _gather(self) -> None:
        """Bring to rank 0 what ranks keep apart, so that one checkpoint holds all of it.

        Each rank's batch norm has seen other images; all get the mean of their statistics.
        """
        hvd = self.hvd
        total = hvd.allreduce(self.sums.cpu(), op=hvd.Sum, name="sums")
        self.sums.copy_(total if self.run.leads else torch.zeros_like(total))
        statistics = [b for b in self.model.buffers() if b.is_floating_point()]
        flat = torch.cat([buffer.flatten() for buffer in statistics])
        mean = hvd.allreduce(flat, name="statistics")
        for buffer, part in zip(
            statistics, mean.split([b.numel() for b in statistics]), strict=True
        ):
            buffer.copy_(part.view_as(buffer))

    def _checkpoint_path(self, epoch: int) -> Path:
        return Path(self.args.checkpoint_format.format(epoch=epoch))

    def _save(self, path: Path) -> None:
        self.run.save(path, self.model, self.optimizer, sums=self.sums.cpu())

    def _read_checkpoint(self) -> dict[str, Any]:
        """The latest checkpoint, its weights put into the model; or {}, with those of --load."""
        path = latest(self.args.checkpoint_format, range(1, self.args.epochs + 1))
        if path is None:
            if self.args.load:
                start_from(self.model, self.args.load)
            return {}
        checkpoint = self.run.read_checkpoint(path)
        load_weights(self.model, checkpoint["model"], path)
        return checkpoint
