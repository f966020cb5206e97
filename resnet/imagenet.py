"""Train ResNet on a folder of classes, and resume from any checkpoint bit for bit."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hvd_ext.data import Order
from hvd_ext.errors import UsageError
from resnet.folder import Opened, Sample, centred, normalised, read_images, stack, train_sample
from resnet.model import KIND, MODELS, ResNet
from resnet.optimizer import distributed, learning_rate, sgd
from resnet.readable import check_images, readable
from resnet.validation import FIGURES, describe, latest, means, sums, validate
from resnet.weights import load_weights, start_from
from training import ranks
from training.by_epochs import EpochTrainer
from training.run import Run


class ImageNetTrainer(EpochTrainer):
    """One rank's part of a run."""

    model: ResNet
    advice = "lower --batch-size or --image-size"
    unit, columns = "images", ("lr",)
    figures, best_by, higher_is_better = FIGURES, "accuracy", True

    def __init__(self, args: argparse.Namespace, hvd: ModuleType, program: str) -> None:
        """List the images and, on rank 0, read weights or the latest checkpoint. A collective.

        Raises:
            UsageError: images, weights or checkpoint cannot be used.
        """
        self.args, self.hvd = args, hvd
        self.images = read_images(args.train_dir, hvd, program, (), args)
        classes = self.images.classes
        self.held_out = read_images(args.val_dir, hvd, program, classes, args)
        self.readable = readable(self.images)
        self.passes = ranks.passes(args, hvd)
        self.rank_batch = args.batch_size * self.passes
        self.run = Run(args, hvd, program, KIND, self.rank_batch * hvd.size())
        self.run.resume_hint = ""
        if len(self.images) < self.run.global_batch:
            raise UsageError(
                f"{args.train_dir} holds {len(self.images)} images, fewer than one step "
                f"takes ({self.run.global_batch}): lower --batch-size"
            )
        # The results of `validation.sums` in this epoch so far, and in this step's passes.
        self.sums = torch.zeros(4, dtype=torch.float64)
        self._found: list[Tensor] = []
        torch.manual_seed(args.seed)
        self.model = MODELS[args.model](len(self.images.classes), zero_init_residual=True)
        self._resumed = self._read_checkpoint() if self.run.leads else {}
        self.run.follow(Order(len(self.images), args.seed, data=self.images.fingerprint))

    def check(self) -> None:
        """Look at all images. A collective."""
        check_images((self.images, self.held_out), self.args, self.hvd, self.run.program)

    def start(self) -> None:
        """Give every rank the state of rank 0. A collective."""
        args, hvd, run = self.args, self.hvd, self.run
        self.model.to(run.device)
        self.rate = learning_rate(args, hvd, run.device)
        self.recipe = str(self.rate)
        self.optimizer = distributed(args, hvd, sgd(args, self.model), self.model, self.passes)
        self.sums = self._resumed.get("sums", self.sums).to(run.device)
        self.slots = ranks.slots(args, hvd, self.model)
        run.share_state(self.model, self.optimizer, self._resumed)
        self._resumed = {}
        self.replica = ranks.replica(args, hvd, self.model, args.batches_per_allreduce)
        side = args.image_size

        def transform(opened: Opened, rng: np.random.Generator) -> Sample:
            return train_sample(opened, side, rng) if args.augment else centred(opened, side)

        images = self.readable if args.skip_unreadable else self.images
        self.loader = run.loader(images, hvd.rank(), hvd.size(), transform, stack)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Images and their classes."""
        args, run = self.args, self.run
        images, labels = run.next_batch(self.loader)
        images = images.to(run.device, memory_format=ranks.memory_format(args))
        return images, labels.to(run.device)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with ranks.autocast(self.args, self.run.device):
            logits = self.replica(normalised(inputs))
            value = nn.functional.cross_entropy(
                logits, targets, label_smoothing=self.args.label_smoothing
            )
            self._found.append(sums(value, logits, targets))
        return value

    def learning_rate(self) -> float:
        return self.rate.at(self.run.position.samples / self.run.order.samples)

    def after_step(self) -> None:
        found, self._found = self._found, []
        for its in self.slots.gather(found) if self.slots else found:
            self.sums += its

    def row(self) -> tuple[float]:
        """The learning rate of the last step."""
        return (self.lr,)

    def figures_of_epoch(self) -> tuple[float, ...]:
        if self.args.skip_unreadable:
            self.readable.report(self.hvd, self.run.program)
        found = means(self.hvd.broadcast(self.sums.cpu(), 0, name="sums"))
        self.sums.zero_()
        return tuple(found.values())

    def validate(self) -> tuple[float, ...]:
        """FIGURES of the validation images, each counted once. A collective."""
        run = self.run
        found = validate(self.model, self.held_out, self.args, self.hvd, run.device, run.program)
        self.model.train()
        return tuple(found.values())

    def describe(self, figures: dict[str, float]) -> str:
        return describe(figures)

    def state(self) -> dict[str, Any]:
        """The sums of the epoch so far, and the names of the classes."""
        return {"sums": self.sums.cpu(), "classes": list(self.images.classes)}

    def gather(self) -> None:
        """Collect the ranks' separate state on rank 0, so that one checkpoint has all of it.

        Each rank's batch norm has seen different images; all ranks get the mean of the statistics.
        """
        if self.slots:
            return  # every rank has them all
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
