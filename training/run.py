"""One run: its position, order of samples, checkpoints, and the steps between them."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import hvprof
from hvd_ext.cli import progress
from hvd_ext.data import DataLoader, Dataset, Order, rank_budget
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.events import region
from training import ranks
from training.checkpoint import (
    load_checkpoint,
    require_same_flags,
    save_checkpoint,
    shaping_flags,
)
from training.position import Position
from training.samples.batches import SamplesError, next_batch
from training.stopping import Stopping

if TYPE_CHECKING:
    from mpi4py import MPI

_HELD = (
    *("flags", "global_batch", "model", "optimizer", "epoch", "step", "best", "pending"),
    *("order", "rng"),
)


class Run:
    """One rank's part of a run, whatever is trained.

    Attributes:
        leads: whether this rank writes.
        device: the device that it computes on.
        global_batch: samples of a step, of all ranks.
        position: where the run is.
        order: order of its samples, once `follow` was called.
        step_times_s: times of the steps that this process took.
        resume_hint: text to add to the flags to resume from the checkpoint.
        best: the figure by which the best checkpoint so far was chosen, or None.
        pending: whether the validation after the last step is still to be done.
    """

    resume_hint = " and --resume"
    pending = False
    order: Order

    def __init__(
        self,
        args: argparse.Namespace,
        hvd: ModuleType,
        program: str,
        kind: str,
        global_batch: int,
    ) -> None:
        """Prepare a run without exchanging or writing.

        Raises:
            UsageError: the device is not available.
        """
        self.args, self.hvd, self.program, self.kind = args, hvd, program, kind
        self.leads = hvd.rank() == 0
        self.device = ranks.device(args, hvd)
        self.global_batch = global_batch
        self.position = Position()
        self.step_times_s: list[float] = []
        self.best: float | None = None
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
        self.best, self.pending = checkpoint["best"], checkpoint["pending"]
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
                f"{path} belongs to an earlier run: add --resume to resume it, "
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
        comm: MPI.Comm | None = None,
    ) -> DataLoader:
        """Iterator over this rank's batches from the run's position; call it after `share_state`.

        Args:
            dataset: dataset of the samples.
            rank: this rank's number among those that share a step.
            size: number of ranks that share a step.
            transform: see DataLoader.
            collate: see DataLoader's collate_fn.
            comm: see DataLoader.

        Raises:
            SystemExit: --store cannot be had; rank 0 has said why.
        """
        budget = getattr(self.args, "store", None)
        if budget is not None:
            local_size = self.hvd.local_size()
            budget = rank_budget(local_size) if budget == "memory" else budget // local_size
            # Ranks that read a sample together must keep the same ones.
            budget = min(self.hvd.allgather_object(budget, name="budget"))
        with ranks.collective_errors(self.hvd, self.program):
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
                store=budget,
                comm=comm,
            )
            loader.load_state_dict(self.order.state(self.position.samples))
            loader.start()
        if loader.store and self.leads:
            print(f"{self.program}: {loader.store.size}", flush=True)
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
            model: the model to broadcast.
            optimizer: a DistributedOptimizer; broadcast if the run is resumed.
            resumed: the checkpoint that is resumed, on rank 0, or {}.
        """
        hvd = self.hvd
        hvprof.watch_exchange(optimizer)
        mine = (self.position, self.best, self.pending, resumed.get("rng"))
        self.position, self.best, self.pending, rng = hvd.broadcast_object(mine, root_rank=0)
        if rng is not None:
            if any(getattr(weight, "hvd_ext_own", False) for weight in model.parameters()):
                # Each rank takes its own part.
                held = hvd.broadcast_object(resumed.get("optimizer"), root_rank=0, name="held")
                optimizer.load_state_dict(held)
            else:
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
            title: title of the progress bar.
            steps: total number of steps, those of an earlier process included.
            step: takes one; returns this rank's loss.
            note: called after each step with its loss; returns text for the progress, or nothing.
            save: writes a checkpoint; collective.

        Raises:
            SystemExit: the run was asked to stop, or lacks samples; its checkpoint is written.
            HvdExtError: the loss is not finite; the last checkpoint stays.
        """
        with progress(title, steps, shown=self.leads) as advance:
            while self.position.step < steps:
                began_s = time.perf_counter()
                try:
                    loss = step()
                except SamplesError as error:
                    if self.step_times_s:
                        save()
                    self._stopping.settle()
                    with ranks.collective_errors(self.hvd, self.program):
                        error.raise_mine()
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                self.position.step += 1
                self.position.samples += self.global_batch
                self.step_times_s.append(time.perf_counter() - began_s)
                self._require_finite(loss)
                advance(self.position.step, note(loss))
                if self.position.step < steps:
                    if self._stopping.asked():
                        save()
                        at = f"{self.program}: stopped after step {self.position.step}"
                        self._stopping.leave(self.hvd, at, self.resume_hint)
                    if self.due(self.args.checkpoint_every):
                        save()
                hvprof.step()
        self._stopping.settle()

    def next_batch(self, loader: DataLoader) -> Any:
        """The next batch of this rank, for a step. A collective.

        If a rank cannot read its samples, no rank takes the step, and `take_steps` ends the run.

        Args:
            loader: loader of this rank's batches.
        """
        if self.args.synthetic or self.args.exchange == "none":
            return next(loader)  # an error ends the job, so the other ranks do not matter
        return next_batch(loader, self._stopping.any_rank)

    def _require_finite(self, loss: Tensor) -> None:
        if torch.isfinite(loss).all():
            return
        last = self.position.samples
        raise HvdExtError(
            f"the loss of step {self.position.step} is {loss.item()}, of samples "
            f"{last - self.global_batch} to {last - 1}: lower the learning rate, or look for a "
            "damaged sample; the last checkpoint stays"
        )

    @property
    def steps_taken(self) -> int:
        """Steps since the beginning of the run, over all epochs."""
        return self.position.samples // self.global_batch

    def due(self, every: int) -> bool:
        """Whether this step's number is a multiple of `every`; with 0 no step is."""
        return every > 0 and self.position.step % every == 0

    def epoch_ended(self) -> bool:
        """Whether this step used an epoch's last sample."""
        return self.position.samples % self.order.samples < self.global_batch

    def improves(self, figure: float, *, higher_is_better: bool) -> bool:
        """Whether a figure is the best so far; if so, it is remembered.

        Args:
            figure: the same on every rank.
            higher_is_better: whether a higher figure is better than a lower one.
        """
        if self.best is None:
            improved = not math.isnan(figure)
        else:
            improved = figure > self.best if higher_is_better else figure < self.best
        if improved:
            self.best = figure
        return improved

    def save(
        self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, **more: Any
    ) -> None:
        """Write a checkpoint, on rank 0, that holds `more` too. A collective.

        Raises:
            SystemExit: on every rank, if it cannot be written, or weights are not finite.
        """
        with (
            region("checkpoint", kind="io"),
            ranks.collective_errors(self.hvd, self.program),
        ):
            drain(optimizer)
            # On every rank, because a sharded optimizer's state and shared filters are gathered.
            optimizer_state, model_state = optimizer.state_dict(), model.state_dict()
            if not all(torch.isfinite(weight).all() for weight in model.parameters()):
                raise HvdExtError(
                    f"weights are not finite after step {self.position.step}: lower the learning "
                    f"rate; {path} is not written, an older one stays"
                )
            if self.leads:
                held = {
                    "kind": self.kind,
                    "flags": shaping_flags(self.args),
                    "global_batch": self.global_batch,
                    "model": model_state,
                    "optimizer": optimizer_state,
                    "epoch": self.position.epoch,
                    "step": self.position.step,
                    "best": self.best,
                    "pending": self.pending,
                    "order": self.order.state(self.position.samples),
                    "rng": torch.get_rng_state(),
                }
                save_checkpoint(path, held | more)


def drain(optimizer: torch.optim.Optimizer) -> None:
    """Make all nodes hold the same state before the model is evaluated or saved. A collective."""
    getattr(optimizer, "drain", lambda: None)()  # Horovod's own exchange nothing later
