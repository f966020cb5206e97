"""Training to the end of a run, whatever is trained; `by_steps` and `by_epochs` say when to log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from hvd_ext.data import DataLoader
from hvd_ext.events import region
from training import ranks
from training.run import Run, drain


def descend(
    optimizer: torch.optim.Optimizer,
    *losses: Callable[[], Tensor],
    clip: float | None = None,
    slots: Any = None,
    step: int = 0,
) -> Tensor:
    """Take one step of an optimizer that reduces the sum of some losses; returns the sum.

    With slots, it reduces and returns the mean of the losses of all ranks' slots.

    Args:
        optimizer: a DistributedOptimizer with one backward pass a step for each loss.
        losses: functions that return a loss; their gradients are added up.
        clip: norm that the gradients of all ranks, as one vector, have at most.
        slots: hvd_ext.torch.Slots; this rank's slots have these losses.
        step: its number in the run, for the random numbers of the slots.
    """
    optimizer.zero_grad()
    values = []
    if slots:
        values.append(slots.backward(step, lambda slot: losses[slot - slots.own.start]()))
    for loss in () if slots else losses:
        with region("forward"):
            value = loss()
        with region("backward"):
            value.backward()
        values.append(value.detach())
    with region("update"), _clipped(optimizer, clip) if clip else nullcontext():
        optimizer.step()
    return values[0] if len(values) == 1 else torch.stack(values).sum()


def _clipped(optimizer: Any, most: float) -> AbstractContextManager[None]:
    """Clip the reduced gradients; the step must be taken within the context."""
    if hasattr(optimizer, "clip_grad_norm_"):  # hvd_ext's, which may be sharded
        optimizer.clip_grad_norm_(most)
        return nullcontext()
    exchanges = hasattr(optimizer, "synchronize")
    if exchanges:
        optimizer.synchronize()
    learnt = [p for group in optimizer.param_groups for p in group["params"]]
    torch.nn.utils.clip_grad_norm_(learnt, most)
    context: AbstractContextManager[None]
    context = optimizer.skip_synchronize() if exchanges else nullcontext()
    return context


class Trainer(ABC):
    """A model and its data, for a `Loop`.

    Attributes:
        run: this rank's part of the run.
        passes: backward passes of this rank in a step, as `ranks.passes` counts them.
        slots: result of `ranks.slots`, once `start` was called.
        model: what checkpoints hold.
        architecture: the plain values that distinguish models, for checkpoints that hold them.
        optimizer: a DistributedOptimizer, once `start` was called.
        advice: what to do when memory is short.
        unit: name of samples, in the plural.
        loader: loader of this rank's batches, once `start` was called.
        columns: columns of the log, besides those that its loop writes.
        figures: names of the values that `validate` returns; empty if there is nothing to validate
            with.
        best_by: the figure by which the best checkpoint is chosen; "": the first.
        higher_is_better: whether a higher value of that figure is better.
        layout: how the ranks share the work, for the last line.
    """

    run: Run
    passes: int = 1
    slots: Any = None
    model: nn.Module
    architecture: dict[str, Any] | None = None
    optimizer: torch.optim.Optimizer
    advice: str
    unit: str
    loader: DataLoader
    columns: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    best_by: str = ""
    higher_is_better: bool = False
    layout: str = ""

    @abstractmethod
    def start(self) -> None:
        """Build the optimizer, and share rank 0's state. A collective."""

    @abstractmethod
    def batch(self) -> tuple[Any, Any]:
        """Inputs and targets of this rank's step, on its device; Any: they may be partitioned."""

    @abstractmethod
    def loss(self, inputs: Any, targets: Any) -> Tensor:
        """The mean loss of --batch-size samples, a scalar."""

    @abstractmethod
    def learning_rate(self) -> float:
        """The learning rate of the next step."""

    def before_step(self) -> None:  # noqa: B027
        """Prepare model and random numbers."""

    def after_step(self) -> None:  # noqa: B027
        """Update the average of weights, or collect the notes of `loss`. A collective."""

    def step(self) -> Tensor:
        """Take one step; returns this rank's loss, a scalar. A collective."""
        args, run = self.run.args, self.run
        self.before_step()
        with region("load", kind="io"):
            batch = self.batch()
        rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parts = [batch]
        if self.passes > 1:
            parts = list(zip(*(whole.split(args.batch_size) for whole in batch), strict=True))
        losses = (partial(self._share_of_loss, *part) for part in parts)
        clip = getattr(args, "clip", None)
        loss = descend(self.optimizer, *losses, clip=clip, slots=self.slots, step=run.steps_taken)
        self.after_step()
        return loss

    def _share_of_loss(self, inputs: Any, targets: Any) -> Tensor:
        loss = self.loss(inputs, targets)
        # Gradients of the passes add up and must become their mean; slots take the mean themselves.
        return loss if self.slots or self.passes == 1 else loss / self.passes

    @property
    def lr(self) -> float:
        """The learning rate of the last step."""
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

    def row(self) -> tuple[float, ...]:
        """The columns, after a step."""
        return ()

    def validate(self) -> tuple[float, ...]:
        """The figures of the held-out samples. A collective.

        It must leave random numbers as they were.
        """
        return ()

    def describe(self, figures: dict[str, float]) -> str:
        """Figures as text, by their names."""
        return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in figures.items())

    def state(self) -> dict[str, Any]:
        """Contents of a checkpoint besides model and optimizer."""
        return {}


Trained = TypeVar("Trained", bound=Trainer)


class Loop(ABC, Generic[Trained]):
    """One process's part of a run, from its first step to its last.

    Attributes:
        trainer: the trainer.
        run: its run.
        figures: figures of the last validation, by name.
    """

    def __init__(self, trainer: Trained) -> None:
        """Make the output folders and logs. A collective.

        Raises:
            SystemExit: they cannot be written; rank 0 has said why.
        """
        self.trainer, self.run = trainer, trainer.run
        self.figures: dict[str, float] = {}
        with ranks.collective_errors(self.run.hvd, self.run.program):
            if self.run.leads:
                self.open_logs()

    def train(self) -> None:
        """Train to the end. A collective."""
        trainer, run = self.trainer, self.run
        with ranks.collective_errors(run.hvd, run.program):
            trainer.start()
        with ranks.abort_on_error(run.hvd, run.program), ranks.enough_memory(trainer.advice):
            self.take_steps()
            trainer.loader.close()

    @abstractmethod
    def open_logs(self) -> None:
        """Make the output folders and logs, on rank 0."""

    @abstractmethod
    def take_steps(self) -> None:
        """Take the steps of this process, and log, validate, save and summarize. A collective."""

    def validate(self) -> bool:
        """Validate; returns whether the model is the best so far. A collective."""
        trainer, run = self.trainer, self.run
        drain(trainer.optimizer)
        with region("validate"), torch.no_grad():
            found = trainer.validate()
        # Rank 0's, if ranks train alone.
        found = run.hvd.broadcast_object(found, root_rank=0, name="figures")
        self.figures = dict(zip(trainer.figures, found, strict=True))
        figure = self.figures[trainer.best_by or trainer.figures[0]]
        return run.improves(figure, higher_is_better=trainer.higher_is_better)

    def save(self, path: Path) -> None:
        """Write a checkpoint. A collective."""
        trainer = self.trainer
        arch = {} if trainer.architecture is None else {"arch": trainer.architecture}
        self.run.save(path, trainer.model, trainer.optimizer, **arch, **trainer.state())
