"""Training to the end of a run, whatever is trained: log, validation, checkpoints, summary."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hvd_ext.data import DataLoader
from hvd_ext.events import region
from hvd_ext.files import make_folder, write_json
from training import ranks
from training.checkpoint import keep_last
from training.log import CsvLog, tensorboard
from training.run import Run, drain


def descend(
    optimizer: torch.optim.Optimizer, *losses: Callable[[], Tensor], clip: float | None = None
) -> Tensor:
    """Take one step of an optimizer down the sum of some losses; returns the sum.

    Args:
        optimizer: a DistributedOptimizer, of as many backward passes a step.
        losses: each is called, and its gradients are added up.
        clip: norm that the gradients of all ranks, as one vector, have at most.
    """
    optimizer.zero_grad()
    values = []
    for loss in losses:
        with region("forward"):
            value = loss()
        with region("backward"):
            value.backward()
        values.append(value.detach())
    with region("update"), _clipped(optimizer, clip) if clip else nullcontext():
        optimizer.step()
    return values[0] if len(values) == 1 else torch.stack(values).sum()


def _clipped(optimizer: Any, most: float) -> AbstractContextManager[None]:
    """Clip what the ranks have reduced; the step is to be taken in the context."""
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
    """What is trained, for `train`.

    Attributes:
        run: this rank's part.
        model: what checkpoints hold.
        architecture: the plain values that tell models apart.
        optimizer: a DistributedOptimizer, once `start` was called.
        advice: what to do when memory is short.
        unit: what samples are called, in the plural.
        loader: of this rank's batches, once `start` was called.
        columns: of the log, besides the step, the loss, the rate, and the share of the time that
            went into waiting for samples.
        figures: names of what `validate` returns; none: there is nothing to validate with. By the
            first the best checkpoint is chosen.
        higher_is_better: of that figure.
        layout: for the last line, how the ranks share the work.
    """

    run: Run
    model: nn.Module
    architecture: dict[str, Any]
    optimizer: torch.optim.Optimizer
    advice: str
    unit: str
    loader: DataLoader
    columns: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    higher_is_better: bool = False
    layout: str = ""

    @abstractmethod
    def start(self) -> None:
        """Build the optimizer, and share rank 0's state. A collective."""

    @abstractmethod
    def step(self) -> Tensor:
        """Take one step; returns this rank's loss, a scalar."""

    def row(self) -> tuple[float, ...]:
        """The columns, after a step."""
        return ()

    def validate(self) -> tuple[float, ...]:
        """The figures of samples that are not learnt from. A collective.

        It must leave random numbers as they were.
        """
        return ()

    def state(self) -> dict[str, Any]:
        """What a checkpoint is to hold besides model and optimizer."""
        return {}


class _Session:
    """The log, validation and checkpoints of one process's part of a run."""

    def __init__(self, trainer: Trainer) -> None:
        """Make the output folder and its logs. A collective."""
        self.trainer, run = trainer, trainer.run
        self.run = run
        self.loss = float("nan")
        self.figures: dict[str, float] = {}
        args, at = run.args, run.position.step
        self._log = self._validation = None
        with ranks.collective_errors(run.hvd, run.program):
            if run.leads:
                make_folder(args.output)
                usual = ("step", "loss", f"{trainer.unit}_per_second", "read_share")
                open_log = partial(CsvLog, resumed_at=at, board=tensorboard(args.tensorboard, at))
                self._log = open_log(args.output / "log.csv", (*usual, *trainer.columns))
                if trainer.figures:
                    path = args.output / "validation.csv"
                    self._validation = open_log(path, ("step", *trainer.figures))

    def after_step(self, local_loss: Tensor) -> str:
        """Log and validate if it is due; returns what the progress shows. A collective."""
        run, args = self.run, self.run.args
        last = run.position.step == args.steps
        shown = []
        if last or run.due(args.log_every):
            shown.append(self._write_row(local_loss))
        every = args.validate_every
        if last or (run.due(every) if every else run.epoch_ended()):
            shown.append(self._validate())
        return "  ".join(filter(None, shown))

    def save(self) -> None:
        """Write the checkpoint of this step, and remove what is no longer to be kept."""
        run = self.run
        self._save_as("checkpoint.pt")
        with ranks.collective_errors(run.hvd, run.program):
            if run.leads:
                keep_last(run.checkpoint_path, run.position.step, run.args.keep)

    def _save_as(self, name: str) -> None:
        trainer, run = self.trainer, self.run
        more = {"arch": trainer.architecture, **trainer.state()}
        run.save(run.args.output / name, trainer.model, trainer.optimizer, **more)

    def _write_row(self, local_loss: Tensor) -> str:
        trainer, run = self.trainer, self.run
        self.loss = run.hvd.allreduce(local_loss.cpu(), name="loss").item()
        window_s = run.step_times_s[-run.args.log_every :]
        per_second = run.global_batch * len(window_s) / sum(window_s)
        if self._log:
            read_share = trainer.loader.statistics().wait_s / sum(run.step_times_s)
            self._log.write(run.position.step, self.loss, per_second, read_share, *trainer.row())
        return f"loss {self.loss:.4f}  {per_second:.2f} {trainer.unit}/s"

    def _validate(self) -> str:
        trainer, run = self.trainer, self.run
        if not trainer.figures:
            return ""
        drain(trainer.optimizer)
        with region("validate"), torch.no_grad():
            found = trainer.validate()
        # Rank 0's, where every rank keeps to itself.
        found = run.hvd.broadcast_object(found, root_rank=0, name="figures")
        self.figures = dict(zip(trainer.figures, found, strict=True))
        if self._validation:
            self._validation.write(run.position.step, *found)
        if run.improves(found[0], higher_is_better=trainer.higher_is_better):
            self._save_as("best.pt")
        return describe(self.figures)


def train(trainer: Trainer) -> None:
    """Train to --steps, with a log, checkpoints and a summary. A collective."""
    run = trainer.run
    session = _Session(trainer)
    with ranks.collective_errors(run.hvd, run.program):
        trainer.start()
    with ranks.abort_on_error(run.hvd, run.program), ranks.enough_memory(trainer.advice):
        run.take_steps(run.program, run.args.steps, trainer.step, session.after_step, session.save)
        trainer.loader.close()
        if run.step_times_s:
            session.save()
        if run.leads:
            _summarise(trainer, {"loss": session.loss, **session.figures})


def describe(figures: dict[str, float]) -> str:
    """Figures as text, by their names."""
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in figures.items())


def _summarise(trainer: Trainer, figures: dict[str, float]) -> None:
    run = trainer.run
    args, size = run.args, run.hvd.size()
    if not run.step_times_s:
        print(f"{run.program}: nothing to do: {run.checkpoint_path} has all {args.steps} steps")
        return
    # The first steps allocate memory and agree on names.
    warm_up = min(10, len(run.step_times_s) // 5)
    step_time_s = statistics.median(run.step_times_s[warm_up:])
    per_second = run.global_batch / step_time_s
    summary = {
        "exchange": args.exchange,
        "size": size,
        "arch": trainer.architecture,
        "batch_size": args.batch_size,
        "steps": run.position.step,
        **figures,
        "step_time_s": step_time_s,
        f"{trainer.unit}_per_second": per_second,
        **dict(zip(trainer.columns, trainer.row(), strict=True)),
    }
    write_json(args.output / "summary.json", summary)
    print(
        f"{run.position.step} steps on {size} ranks{trainer.layout}: {describe(figures)}, "
        f"{per_second:.2f} {trainer.unit}/s; wrote {run.checkpoint_path}"
    )
