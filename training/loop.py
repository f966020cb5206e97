"""Training to the end of a run, whatever is trained: log, checkpoints and summary."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hvd_ext.data import DataLoader
from hvd_ext.events import region
from hvd_ext.files import make_folder, write_json
from training import ranks
from training.log import CsvLog
from training.run import Run, drain


def descend(optimizer: torch.optim.Optimizer, *losses: Callable[[], Tensor]) -> Tensor:
    """Take one step of an optimizer down the sum of some losses; returns the sum."""
    optimizer.zero_grad()
    values = []
    for loss in losses:
        with region("forward"):
            value = loss()
        with region("backward"):
            value.backward()
        values.append(value.detach())
    with region("update"):
        optimizer.step()
    return values[0] if len(values) == 1 else torch.stack(values).sum()


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
        figures: names of what `results` finds, which the log has too; NaN until it was called.
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

    def validates(self) -> bool:
        """Whether `results` is called after this step; after the last one it always is."""
        return False

    def results(self) -> dict[str, float]:
        """The figures of the model as it is. A collective."""
        return {}


def train(trainer: Trainer) -> None:
    """Train to --steps, with a log, checkpoints and a summary. A collective."""
    run = trainer.run
    args, hvd = run.args, run.hvd
    rate = f"{trainer.unit}_per_second"
    log = None
    with ranks.collective_errors(hvd, run.program):
        if run.leads:
            make_folder(args.output)
            columns = ("step", "loss", rate, "read_share", *trainer.columns, *trainer.figures)
            log = CsvLog(args.output / "log.csv", columns, resumed_at=run.position.step)
    with ranks.collective_errors(hvd, run.program):
        trainer.start()

    loss = float("nan")
    results = dict.fromkeys(trainer.figures, float("nan"))

    def note(local_loss: Tensor) -> str:
        nonlocal loss, results
        last = run.position.step == args.steps
        validated = last or trainer.validates()
        if validated:
            drain(trainer.optimizer)
            results = trainer.results()
        if not (validated or run.due(args.log_every)):
            return ""
        loss = hvd.allreduce(local_loss.cpu(), name="loss").item()
        window_s = run.step_times_s[-args.log_every :]
        per_second = run.global_batch * len(window_s) / sum(window_s)
        if log:
            read_share = trainer.loader.statistics().wait_s / sum(run.step_times_s)
            log.write(
                run.position.step, loss, per_second, read_share, *trainer.row(), *results.values()
            )
        shown = _shown({"loss": loss, **(results if validated else {})})
        return f"{shown}  {per_second:.2f} {trainer.unit}/s"

    def save() -> None:
        run.save(run.checkpoint_path, trainer.model, trainer.optimizer, arch=trainer.architecture)

    with ranks.abort_on_error(hvd, run.program), ranks.enough_memory(trainer.advice):
        run.take_steps(run.program, args.steps, trainer.step, note, save)
        if run.step_times_s:
            save()
        if run.leads:
            _summarise(trainer, {"loss": loss, **results})


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
        f"{run.position.step} steps on {size} ranks{trainer.layout}: {_shown(figures)}, "
        f"{per_second:.2f} {trainer.unit}/s; wrote {run.checkpoint_path}"
    )


def _shown(figures: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in figures.items())
