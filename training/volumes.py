"""Train a network whose samples may be split over several ranks: mesh and CosmoFlow.

The ranks form groups of one grid each; a group works on one share of the batch, each
rank on its block of every sample, and reads no more than that.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hvd_ext import spatial
from hvd_ext.cli import above_zero, at_least, progress
from hvd_ext.errors import UsageError
from hvd_ext.files import make_folder, write_json
from training import ranks
from training.arguments import Parser, add_exchange_arguments
from training.checkpoint import load_checkpoint, save_checkpoint
from training.log import CsvLog

COLUMNS = ("step", "loss", "samples_per_second", "read_share")
AXES = ("depth", "height", "width")
_HELD = ("arch", "model", "optimizer", "step", "samples", "seed")  # by a checkpoint
_ADVICE = "share a sample among more ranks (--grid), or lower --batch-size"


@dataclass(frozen=True)
class Task:
    """What is to be learnt.

    Attributes:
        program: as errors begin.
        kind: of the checkpoints.
        model: not split yet.
        architecture: the plain values that tell models apart.
        inputs: (samples, channels, *space), sliced as it is needed.
        targets: (samples, channels, *space), or (samples, values) of the whole sample.
    """

    program: str
    kind: str
    model: nn.Module
    architecture: dict[str, Any]
    inputs: spatial.Source
    targets: spatial.Source


def add_arguments(cli: Parser, axes: int, folder_holds: str) -> None:
    """Add the flags that such trainers share.

    Args:
        cli: the command line.
        axes: dimensions of space.
        folder_holds: files that --data is to name, for the help.
    """
    source = cli.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="DIR", help=f"folder with {folder_holds}")
    source.add_argument("--synthetic", action="store_true", help="learn from procedural samples")
    cli.add_argument("--output", type=Path, required=True, metavar="DIR", help="where it writes")
    cli.add_argument(
        "--grid",
        type=_grid_type(axes),
        default=(1,) * axes,
        metavar="x".join("DHW"[3 - axes :]),
        help=f"ranks along {', '.join(AXES[3 - axes :])} that share a sample, as in "
        + "x".join("2" + "1" * (axes - 1)),
    )
    positive = at_least(1)
    cli.add_argument("--batch-size", type=positive, default=1, help="samples per group of ranks")
    cli.add_argument("--samples", type=positive, default=1024, help="procedural samples")
    cli.add_argument(
        "--held-out", type=at_least(0), default=8, help="last samples, kept for the end"
    )
    cli.add_argument("--steps", type=positive, default=1000, help="steps in all")
    cli.add_argument("--lr", type=above_zero, default=1e-3, help="Adam's learning rate")
    cli.add_argument("--seed", type=at_least(0), default=1, help="of weights and samples")
    cli.add_argument("--log-every", type=positive, default=10, help="steps per log row")
    cli.add_argument("--checkpoint-every", type=positive, default=500, help="steps per checkpoint")
    cli.add_argument("--resume", action="store_true", help="go on from the checkpoint in --output")
    add_exchange_arguments(cli)


class Trainer:
    """One rank's part of a run."""

    def __init__(self, args: argparse.Namespace, hvd: ModuleType, task: Task) -> None:
        """Check what was asked for, and read the checkpoint; nothing is exchanged yet.

        Raises:
            UsageError: grid, samples or checkpoint cannot be used.
        """
        self.args, self.hvd, self.task = args, hvd, task
        self.leads = hvd.rank() == 0
        self.checkpoint_path = args.output / "checkpoint.pt"
        self.step_number = self.samples_used = 0
        self.read_time_s = 0.0
        self.device = ranks.device(args, hvd)
        space = int(np.prod(args.grid))
        if hvd.size() % space:
            raise UsageError(
                f"--grid {'x'.join(map(str, args.grid))} takes {space} ranks a sample, which "
                f"does not divide {hvd.size()}: change --grid or the number of ranks"
            )
        self.groups = hvd.size() // space
        self.learnt_from = task.inputs.shape[0] - args.held_out
        if self.learnt_from < 1:
            raise UsageError(
                f"--held-out {args.held_out} leaves none of {task.inputs.shape[0]} samples: "
                "lower it"
            )
        self._resumed = self._read_checkpoint() if self.leads else {}

    def start(self) -> None:
        """Split the model, and give every rank the state of rank 0. A collective."""
        args, hvd, model = self.args, self.hvd, self.task.model
        self.grid = spatial.ProcessGrid(
            **dict(zip(AXES[-len(args.grid) :], args.grid, strict=True))
        )
        self.model = spatial.convert(model, self.grid).to(self.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        # Average over all ranks: the sum over a sample's blocks, the mean over samples.
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters()
        )
        if args.resume:
            if self.leads:
                self.optimizer.load_state_dict(self._resumed["optimizer"])
            hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
            self.step_number, self.samples_used = hvd.broadcast_object(
                (self.step_number, self.samples_used), root_rank=0
            )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        self._resumed = {}

    def step(self) -> Tensor:
        """Take one step; returns the loss of this group's samples, a scalar."""
        args = self.args
        # A group's ranks draw alike where they compute the same.
        seeds = np.random.SeedSequence((args.seed, self.step_number, self.grid.sample_group))
        torch.manual_seed(int(seeds.generate_state(1)[0]))
        first = self.samples_used + self.grid.sample_group * args.batch_size
        self.model.train()
        self.optimizer.zero_grad()
        loss = self._loss([self._sample(first + k) for k in range(args.batch_size)])
        loss.backward()
        self.optimizer.step()
        self.step_number += 1
        self.samples_used += args.batch_size * self.groups
        return loss.detach()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Mean loss of the samples that were kept, each counted once. A collective."""
        self.model.eval()
        total = torch.zeros((), dtype=torch.float64)
        for sample in range(self.grid.sample_group, self.args.held_out, self.groups):
            total += self._loss([self.learnt_from + sample]).double().cpu()
        summed = self.hvd.allreduce(total, name="held_out", op=self.hvd.Average)
        return float(summed) * self.groups / self.args.held_out

    def save(self) -> None:
        """Write the checkpoint, on rank 0. A collective."""
        with ranks.collective_errors(self.hvd, self.task.program):
            if self.leads:
                save_checkpoint(
                    self.checkpoint_path,
                    {
                        "kind": self.task.kind,
                        "arch": self.task.architecture,
                        "model": self.model.state_dict(),
                        "optimizer": self.optimizer.state_dict(),
                        "step": self.step_number,
                        "samples": self.samples_used,
                        "seed": self.args.seed,
                    },
                )

    def _loss(self, samples: list[int]) -> Tensor:
        began = time.perf_counter()
        # Any: torch's functions take partitioned tensors, which their types do not say.
        inputs: Any = spatial.read(self.task.inputs, self.grid, samples).to(self.device)
        targets: Any = spatial.read(self.task.targets, self.grid, samples).to(self.device)
        self.read_time_s += time.perf_counter() - began
        return nn.functional.mse_loss(self.model(inputs), targets)

    def _sample(self, index: int) -> int:
        """Which sample is number `index` of the run: each once an epoch, in random order."""
        epoch, position = divmod(index, self.learnt_from)
        order = np.random.default_rng((self.args.seed, epoch)).permutation(self.learnt_from)
        return int(order[position])

    def _read_checkpoint(self) -> dict[str, Any]:
        path = self.checkpoint_path
        if not self.args.resume:
            if path.exists():
                raise UsageError(
                    f"{path} is of an earlier run: add --resume to go on with it, "
                    "or name another --output"
                )
            return {}
        checkpoint = load_checkpoint(path, self.task.kind, _HELD)
        mine, found = (
            (state["arch"], state["seed"])
            for state in ({"arch": self.task.architecture, "seed": self.args.seed}, checkpoint)
        )
        if mine != found:
            raise UsageError(
                f"{path} is of {found[0]}, seed {found[1]}; asked for is {mine[0]}, seed "
                f"{mine[1]}: resume with the flags that it was started with"
            )
        self.task.model.load_state_dict(checkpoint["model"])
        self.step_number, self.samples_used = checkpoint["step"], checkpoint["samples"]
        return checkpoint


def train(args: argparse.Namespace, hvd: ModuleType, trainer: Trainer) -> None:
    """Train to the end, with a log, checkpoints and a summary. A collective."""
    program = trainer.task.program
    log = None
    with ranks.collective_errors(hvd, program):
        if trainer.leads:
            make_folder(args.output)
            log = CsvLog(args.output / "log.csv", COLUMNS, resumed_at=trainer.step_number)
    with ranks.collective_errors(hvd, program):
        trainer.start()
    with ranks.abort_on_error(hvd, program), ranks.enough_memory(_ADVICE):
        _train(trainer, log)


def _train(trainer: Trainer, log: CsvLog | None) -> None:
    args, hvd, program = trainer.args, trainer.hvd, trainer.task.program
    global_batch = args.batch_size * trainer.groups
    step_times_s: list[float] = []
    loss = float("nan")
    with progress(program, args.steps, shown=trainer.leads) as advance:
        while trainer.step_number < args.steps:
            began = time.perf_counter()
            local_loss = trainer.step()
            step_times_s.append(time.perf_counter() - began)
            note, last = "", trainer.step_number == args.steps
            if last or trainer.step_number % args.log_every == 0:
                loss = hvd.allreduce(local_loss.cpu(), name="loss").item()
                window = step_times_s[-args.log_every :]
                rate = global_batch * len(window) / sum(window)
                note = f"loss {loss:.4f}  {rate:.2f} samples/s"
                if log:
                    log.write(
                        trainer.step_number, loss, rate, trainer.read_time_s / sum(step_times_s)
                    )
            advance(trainer.step_number, note)
            if last or trainer.step_number % args.checkpoint_every == 0:
                trainer.save()
    held_out_loss = trainer.held_out_loss() if args.held_out else float("nan")
    if trainer.leads and not step_times_s:
        print(f"{program}: nothing to do: {trainer.checkpoint_path} has all {args.steps} steps")
    elif trainer.leads:
        _summarise(trainer, step_times_s, loss, held_out_loss)


def _summarise(
    trainer: Trainer, step_times_s: list[float], loss: float, held_out_loss: float
) -> None:
    args = trainer.args
    # The first steps allocate memory and agree on names.
    step_time_s = statistics.median(step_times_s[min(10, len(step_times_s) // 5) :])
    summary = {
        "exchange": args.exchange,
        "size": trainer.hvd.size(),
        "grid": list(args.grid),
        "arch": trainer.task.architecture,
        "batch_size": args.batch_size,
        "steps": trainer.step_number,
        "loss": loss,
        "held_out_loss": held_out_loss if args.held_out else None,
        "step_time_s": step_time_s,
        "samples_per_second": args.batch_size * trainer.groups / step_time_s,
        "read_share": trainer.read_time_s / sum(step_times_s),
    }
    write_json(args.output / "summary.json", summary)
    held_out = f", held-out loss {held_out_loss:.4f}" if args.held_out else ""
    print(
        f"{trainer.step_number} steps on {trainer.hvd.size()} ranks, "
        f"{'x'.join(map(str, args.grid))} a sample: loss {loss:.4f}{held_out}, "
        f"{summary['samples_per_second']:.2f} samples/s; wrote {trainer.checkpoint_path}"
    )


def _grid_type(axes: int) -> Any:
    def grid(text: str) -> tuple[int, ...]:
        parts = text.lower().split("x")
        if len(parts) != axes or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise argparse.ArgumentTypeError(
                f"{text!r} is no grid: give {axes} whole numbers, such as "
                + "x".join("2" + "1" * (axes - 1))
            )
        return tuple(map(int, parts))

    return grid
