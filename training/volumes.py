"""Train a network whose samples may be split over several ranks: mesh and CosmoFlow.

The ranks form groups of one grid each; a group works on one share of the batch, each
rank on its block of every sample, and reads no more than that.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hvd_ext import spatial
from hvd_ext.cli import above_zero, at_least
from hvd_ext.data import Order, fingerprint
from hvd_ext.errors import UsageError
from hvd_ext.events import region
from training import loop, ranks
from training.arguments import Parser, add_exchange_arguments, add_loading_arguments
from training.packs import is_pack, open_pack
from training.run import Run

Block = NDArray[Any]
AXES = ("depth", "height", "width")


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
    source.add_argument(
        "--data", type=Path, metavar="DIR", help=f"folder with {folder_holds}, or FILE.pack"
    )
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
    cli.add_argument("--resume", action="store_true", help="go on from --output, with its flags")
    add_loading_arguments(cli, workers=2)
    add_exchange_arguments(cli)


class VolumeTrainer(loop.Trainer):
    """One rank's part of a run."""

    advice = "share a sample among more ranks (--grid), or lower --batch-size"
    unit = "samples"

    def __init__(self, args: argparse.Namespace, hvd: ModuleType, task: Task) -> None:
        """Check what was asked for, and read the checkpoint; nothing is exchanged yet.

        Raises:
            UsageError: grid, samples or checkpoint cannot be used.
        """
        self.args, self.hvd, self.task = args, hvd, task
        self.model, self.architecture = task.model, task.architecture
        grid = "x".join(map(str, args.grid))
        self.layout = f", {grid} a sample"
        space = int(np.prod(args.grid))
        if space > 1 and args.exchange == "none":
            raise UsageError(
                f"--exchange none: the ranks that share a sample (--grid {grid}) must add up their "
                "gradients: leave --grid out, or name another exchange"
            )
        if hvd.size() % space:
            raise UsageError(
                f"--grid {grid} takes {space} ranks a sample, which "
                f"does not divide {hvd.size()}: change --grid or the number of ranks"
            )
        self.groups = hvd.size() // space
        self.learnt_from = task.inputs.shape[0] - args.held_out
        if self.learnt_from < 1:
            raise UsageError(
                f"--held-out {args.held_out} leaves none of {task.inputs.shape[0]} samples: "
                "lower it"
            )
        self.run = Run(args, hvd, task.program, task.kind, args.batch_size * self.groups)
        self._resumed = self.run.resumed()
        if self._resumed:
            if self._resumed.get("arch") != self.architecture:
                raise UsageError(
                    f"{self.run.checkpoint_path} is of {self._resumed.get('arch')}; the samples "
                    f"ask for {self.architecture}: resume with the samples it was started with"
                )
            self.model.load_state_dict(self._resumed["model"])
        data = fingerprint(tuple(task.inputs.shape), tuple(task.targets.shape))
        self.run.follow(Order(self.learnt_from, args.seed, data=data))

    def start(self) -> None:
        """Split the model, and give every rank the state of rank 0. A collective."""
        args = self.args
        self.grid = spatial.ProcessGrid(
            **dict(zip(AXES[-len(args.grid) :], args.grid, strict=True))
        )
        self.model = spatial.convert(self.model, self.grid).to(self.run.device)
        # Average over all ranks: the sum over a sample's blocks, the mean over samples.
        self.optimizer = self.hvd.DistributedOptimizer(
            torch.optim.Adam(self.model.parameters(), lr=args.lr),
            named_parameters=self.model.named_parameters(),
            **ranks.exchange_options(args, self.hvd),
        )
        self.run.share_state(self.model, self.optimizer, self._resumed)
        self._resumed = {}
        self.blocks = _Blocks(self.task, self.grid)
        self.loader = self.run.loader(
            self.blocks, self.grid.sample_group, self.groups, None, self._assemble
        )

    def step(self) -> Tensor:
        """Take one step; returns the loss of this group's samples, a scalar."""
        args, position = self.args, self.run.position
        # A group's ranks draw alike where they compute the same.
        seeds = np.random.SeedSequence((args.seed, position.step, self.grid.sample_group))
        torch.manual_seed(int(seeds.generate_state(1)[0]))
        with region("load", kind="io"):
            inputs, targets = next(self.loader)
        self.model.train()
        return loop.descend(
            self.optimizer, lambda: nn.functional.mse_loss(self.model(inputs), targets)
        )

    @torch.no_grad()
    def results(self) -> dict[str, float]:
        """Mean loss of the samples that were kept, each counted once. A collective."""
        if not self.args.held_out:
            return {}
        self.model.eval()
        # Their losses, and how many they are.
        sums = torch.zeros(2, dtype=torch.float64)
        for sample in range(self.grid.sample_group, self.args.held_out, self.groups):
            with region("load", kind="io"):
                inputs, targets = self._assemble([self.blocks[self.learnt_from + sample]])
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            sums += torch.tensor([float(loss), 1])
        total, count = self.hvd.allreduce(sums, name="held_out", op=self.hvd.Average)
        # Not a number on a rank that keeps to itself and has none.
        return {"held_out_loss": float(total / count)}

    def _assemble(self, samples: list[tuple[Block, Block]]) -> tuple[Any, Any]:
        """Inputs and targets; Any: torch's functions take partitioned tensors, untyped."""
        sources = (self.task.inputs, self.task.targets)
        parts = zip(sources, zip(*samples, strict=True), strict=True)
        inputs, targets = (
            spatial.assemble(blocks, self.grid, source.shape[2:]).to(self.run.device)
            for source, blocks in parts
        )
        return inputs, targets


class _Blocks:
    """This rank's block of each sample: of its inputs, and of its targets."""

    def __init__(self, task: Task, grid: spatial.ProcessGrid) -> None:
        self._sources, self._grid = (task.inputs, task.targets), grid

    def __getitem__(self, sample: int) -> tuple[Block, Block]:
        inputs, targets = (spatial.read_block(s, self._grid, sample) for s in self._sources)
        return inputs, targets


def open_arrays(
    data: Path, names: tuple[str, str], hvd: ModuleType, program: str
) -> tuple[spatial.Source, spatial.Source]:
    """Inputs and targets by their names: fields of a packed file, or .npy files of a folder.

    Raises:
        UsageError: one is missing, or holds something else.
    """
    if is_pack(data):
        file = open_pack(data, hvd, program)
        return file.field(names[0]), file.field(names[1])
    first, second = (spatial.open_array(data / f"{name}.npy") for name in names)
    return first, second


def _grid_type(axes: int) -> Any:
    def grid(text: str) -> tuple[int, ...]:
        parts = text.lower().split("x")
        if len(parts) != axes or not all(part.isdecimal() and int(part) > 0 for part in parts):
            raise argparse.ArgumentTypeError(
                f"invalid grid {text!r}: give {axes} whole numbers, such as "
                + "x".join("2" + "1" * (axes - 1))
            )
        return tuple(map(int, parts))

    return grid
