"""A run: its position, log, checkpoints and summary, and what hvprof sees of its steps."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

import hvprof
from hvd_ext.cli import progress
from hvd_ext.data import DataLoader, Dataset, Order
from hvd_ext.errors import UsageError
from hvd_ext.events import region
from hvd_ext.files import make_folder, write_json
from training import ranks
from training.checkpoint import (
    load_checkpoint,
    require_same_flags,
    save_checkpoint,
    shaping_flags,
)
from training.log import CsvLog
from training.stopping import STOPPED, Stopping

_HELD = ("flags", "global_batch", "model", "optimizer", "epoch", "step", "order", "rng")


@dataclass
class Position:
    """Where a run is.

    Attributes:
        epoch: whole epochs, of a run that counts them; steps are then of this epoch.
        step: steps taken.
        samples: used so far by all ranks, which is the position in the order of samples.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0


class Run:
    """One rank's part of a run, whatever is trained.

    Attributes:
        leads: whether this rank writes.
        device: what it computes on.
        global_batch: samples of a step, of all ranks.
        position: where the run is.
        order: of its samples, once `follow` was called.
        step_times_s: of the steps that this process took.
        resume_hint: what to add to the flags to go on from the checkpoint.
    """

    resume_hint = " and --resume"
    order: Order

    def __init__(
        self,
        args: argparse.Namespace,
        hvd: ModuleType,
        program: str,
        kind: str,
        global_batch: int,
    ) -> None:
        """Nothing is exchanged or written yet.

        Raises:
            UsageError: the device cannot be had.
        """
        self.args, self.hvd, self.program, self.kind = args, hvd, program, kind
        self.leads = hvd.rank() == 0
        self.device = ranks.device(args, hvd)
        self.global_batch = global_batch
        self.position = Position()
        self.step_times_s: list[float] = []
        self._stopping = Stopping(args.stop_after)
        self._resumed_order: dict[str, Any] = {}

    def read_checkpoint(self, path: Path) -> dict[str, Any]:
        """Read a checkpoint of this run's flags, and take its position.

        Raises:
            UsageError: it cannot be used, or was written with other flags.
        """
        checkpoint = load_checkpoint(path, self.kind, _HELD)
        require_same_flags(path, checkpoint, self.args, self.global_batch)
        order = checkpoint["order"]
        self.position = Position(checkpoint["epoch"], checkpoint["step"], order["position"])
        self._resumed_order = order
        return checkpoint

    def follow(self, order: Order) -> None:
        """Take samples in this order; to be called on all ranks before `share_state`.

        Raises:
            UsageError: the run that is resumed had another.
        """
        self.order = order
        if self._resumed_order:
            order.resume(self._resumed_order)

    def resumed(self) -> dict[str, Any]:
        """The checkpoint in --output if this is rank 0 and --resume is given, or else {}.

        Raises:
            UsageError: it cannot be used, or --output is an earlier run's.
        """
        path = self.checkpoint_path
        if not self.leads:
            return {}
        if self.args.resume:
            return self.read_checkpoint(path)
        if path.exists():
            raise UsageError(
                f"{path} is of an earlier run: add --resume to go on with it, "
                "or name another --output"
            )
        return {}

    def loader(
        self,
        dataset: Dataset,
        rank: int,
        size: int,
        transform: Callable[[Any, np.random.Generator], Any] | None,
        collate: Callable[[list[Any]], Any],
    ) -> DataLoader:
        """What loads this rank's batches from where the run is; to be called after `share_state`.

        Args:
            dataset: of the samples.
            rank: of those that share a step.
            size: how many share it.
            transform: as DataLoader's.
            collate: as DataLoader's collate_fn.
        """
        loader = DataLoader(
            dataset,
            self.global_batch // size,
            self.order,
            rank=rank,
            size=size,
            transform=transform,
            collate_fn=collate,
            num_workers=self.args.workers,
            prefetch_factor=self.args.prefetch,
        )
        loader.load_state_dict(self.order.state(self.position.samples))
        return loader

    @property
    def checkpoint_path(self) -> Path:
        """The checkpoint in --output."""
        return Path(self.args.output / "checkpoint.pt")

    def share_state(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, resumed: dict[str, Any]
    ) -> None:
        """Give every rank the state of rank 0. A collective.

        Args:
            model: broadcast.
            optimizer: a DistributedOptimizer; broadcast if the run is resumed.
            resumed: on rank 0 the checkpoint that is resumed, or {}.
        """
        hvd = self.hvd
        hvprof.watch_exchange(optimizer)
        self.position, rng = hvd.broadcast_object((self.position, resumed.get("rng")), root_rank=0)
        if rng is not None:
            if self.leads:
                optimizer.load_state_dict(resumed["optimizer"])
            # On a fresh optimizer this would take a step with zero gradients to make
            # its state, and Adam's step count would be off by one from then on.
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            torch.set_rng_state(rng)
        # After the optimizer's state, whose broadcast may move the parameters.
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def take_steps(
        self,
        title: str,
        steps: int,
        step: Callable[[], Tensor],
        note: Callable[[Tensor], str],
        save: Callable[[], None],
    ) -> None:
        """Take steps up to number `steps`, with a checkpoint when it is due between them.

        Args:
            title: of the progress bar.
            steps: in all, those of an earlier process included.
            step: takes one; returns this rank's loss.
            note: called after each with its loss; what the progress shows, if anything.
            save: writes a checkpoint; collective.

        Raises:
            SystemExit: the run was asked to stop, and has written a checkpoint.
        """
        with progress(title, steps, shown=self.leads) as advance:
            while self.position.step < steps:
                began_s = time.perf_counter()
                loss = step()
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                self.position.step += 1
                self.position.samples += self.global_batch
                self.step_times_s.append(time.perf_counter() - began_s)
                advance(self.position.step, note(loss))
                if self.position.step < steps:
                    if reason := self._stopping.asked():
                        save()
                        self._leave(reason)
                    if self.due(self.args.checkpoint_every):
                        save()
                hvprof.step()
        self._stopping.settle()

    def _leave(self, reason: str) -> NoReturn:
        """End the process as one that is to be started again. A collective."""
        self._stopping.settle()
        if self.leads:
            print(
                f"{self.program}: stopped after step {self.position.step} ({reason}): its "
                f"checkpoint is written, go on with the same flags{self.resume_hint}",
                file=sys.stderr,
                flush=True,
            )
        # A launcher ends the job when the first rank leaves; by then rank 0 has spoken.
        self.hvd.barrier()
        raise SystemExit(STOPPED)

    def due(self, every: int) -> bool:
        """Whether this step's number is a multiple; 0: none is."""
        return every > 0 and self.position.step % every == 0

    def save(
        self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **more: Any
    ) -> None:
        """Write a checkpoint, on rank 0, that holds `more` too. A collective."""
        with (
            region("checkpoint", kind="io"),
            ranks.collective_errors(self.hvd, self.program),
        ):
            # On every rank: a sharded optimizer gathers it, and what compression has not sent yet.
            getattr(optimizer, "drain", lambda: None)()
            optimizer_state = optimizer.state_dict()
            if self.leads:
                held = {
                    "kind": self.kind,
                    "flags": shaping_flags(self.args),
                    "global_batch": self.global_batch,
                    "model": model.state_dict(),
                    "optimizer": optimizer_state,
                    "epoch": self.position.epoch,
                    "step": self.position.step,
                    "order": self.order.state(self.position.samples),
                    "rng": torch.get_rng_state(),
                }
                save_checkpoint(path, held | more)


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

    def results(self) -> dict[str, float]:
        """Further figures of the trained model. A collective."""
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
            columns = ("step", "loss", rate, "read_share", *trainer.columns)
            log = CsvLog(args.output / "log.csv", columns, resumed_at=run.position.step)
    with ranks.collective_errors(hvd, run.program):
        trainer.start()

    loss = float("nan")

    def note(local_loss: Tensor) -> str:
        nonlocal loss
        if not run.due(args.log_every) and run.position.step < args.steps:
            return ""
        loss = hvd.allreduce(local_loss.cpu(), name="loss").item()
        window_s = run.step_times_s[-args.log_every :]
        per_second = run.global_batch * len(window_s) / sum(window_s)
        if log:
            read_share = trainer.loader.statistics().wait_s / sum(run.step_times_s)
            log.write(run.position.step, loss, per_second, read_share, *trainer.row())
        return f"loss {loss:.4f}  {per_second:.2f} {trainer.unit}/s"

    def save() -> None:
        run.save(run.checkpoint_path, trainer.model, trainer.optimizer, arch=trainer.architecture)

    with ranks.abort_on_error(hvd, run.program), ranks.enough_memory(trainer.advice):
        run.take_steps(run.program, args.steps, trainer.step, note, save)
        if run.step_times_s:
            save()
        results = trainer.results()
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
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in figures.items())
    print(
        f"{run.position.step} steps on {size} ranks{trainer.layout}: {shown}, "
        f"{per_second:.2f} {trainer.unit}/s; wrote {run.checkpoint_path}"
    )
