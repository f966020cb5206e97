"""Train a network whose samples may be split over several ranks: mesh and CosmoFlow.

The ranks form groups of one grid each; a group works on one share of the batch, and each rank reads
and computes only its block of every sample.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hvd_ext import spatial
from hvd_ext.cli import above_zero, at_least, not_negative
from hvd_ext.data import Order, fingerprint
from hvd_ext.errors import UsageError
from hvd_ext.events import region
from training import loop, ranks
from training.arguments import (
    Parser,
    add_exchange_arguments,
    add_loading_arguments,
    add_log_arguments,
    add_store_argument,
    grid_of,
    may_change,
)
from training.grids import sample_groups
from training.measures import Measure
from training.rates import SCALINGS, scaled, warmed_up
from training.run import Run
from training.samples.blocks import Block, Blocks
from training.samples.held_out import Indices, hold_out
from training.samples.packs import is_pack, open_pack

if TYPE_CHECKING:
    from mpi4py import MPI

AXES = ("depth", "height", "width")


@dataclass(frozen=True)
class Task:
    """A task that the model learns.

    Attributes:
        program: the name that errors begin with.
        kind: kind of the checkpoints.
        model: the model, not split yet.
        architecture: the plain values that distinguish models.
        inputs: (samples, channels, *space), sliced as it is needed.
        targets: (samples, channels, *space), or (samples, values) of the whole sample.
        measure: metrics of predictions, besides their loss.
        groups: a number for each sample, (samples,); samples of one number are trained on together
            or held out together, because they are correlated.
    """

    program: str
    kind: str
    model: nn.Module
    architecture: dict[str, Any]
    inputs: spatial.Source
    targets: spatial.Source
    measure: Measure
    groups: Callable[[], NDArray[Any]]


def add_arguments(cli: Parser, axes: int, folder_holds: str, procedural: Sequence[str]) -> None:
    """Add the flags that such trainers share.

    Args:
        cli: the command line.
        axes: number of dimensions of space.
        folder_holds: files that --data has to name, for the help.
        procedural: kinds of samples that can be computed; without a name the first.
    """
    source = cli.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data", type=Path, metavar="DIR", help=f"folder with {folder_holds}, or a packed file"
    )
    source.add_argument(
        "--synthetic",
        nargs="?",
        const=procedural[0],
        choices=procedural,
        help=f"train on synthetic samples of this kind ({procedural[0]} if none is named)",
    )
    cli.add_argument("--output", type=Path, required=True, metavar="DIR", help="output folder")
    cli.add_argument(
        "--grid",
        type=grid_of(axes),
        default=(1,) * axes,
        metavar="x".join("DHW"[3 - axes :]),
        help=f"ranks along {', '.join(AXES[3 - axes :])} that share a sample, as in "
        + "x".join("2" + "1" * (axes - 1)),
    )
    positive = at_least(1)
    cli.add_argument(
        "--split-filters",
        nargs="+",
        default=(),
        metavar="LAYER",
        help="layers, or modules that contain them, whose filters the ranks of a sample share",
    )
    cli.add_argument(
        "--channels",
        type=positive,
        default=1,
        metavar="N",
        help="ranks that hold the same block of a sample and share its filters",
    )
    cli.add_argument(
        "--gather-before",
        nargs="+",
        default=(),
        metavar="LAYER",
        help="layers from which on every rank of a sample computes the whole sample",
    )
    cli.add_argument("--batch-size", type=positive, default=1, help="samples per group of ranks")
    cli.add_argument("--samples", type=positive, default=1024, help="number of synthetic samples")
    cli.add_argument(
        "--held-out",
        type=at_least(0),
        default=8,
        help="minimum number of validation samples: the last ones, in whole groups",
    )
    cli.add_argument("--steps", type=positive, default=1000, help="number of steps")
    cli.add_argument("--lr", type=above_zero, default=1e-3, help="Adam's learning rate")
    cli.add_argument(
        "--lr-batch",
        type=positive,
        metavar="N",
        help="global batch that --lr is meant for; the rate is scaled for another batch",
    )
    cli.add_argument(
        "--lr-scaling",
        choices=SCALINGS,
        default="linear",
        help="scaling of the learning rate with the batch",
    )
    cli.add_argument(
        "--warmup-epochs",
        type=not_negative,
        default=0,
        help="epochs of learning-rate warm-up from 0",
    )
    cli.add_argument(
        "--seed", type=at_least(0), default=1, help="random seed of weights and samples"
    )
    add_log_arguments(cli, checkpoint_every=500, validate_every="epoch")
    cli.add_argument(
        "--resume",
        action="store_true",
        help="resume the run in --output; its flags must be the same",
    )
    may_change(cli, "--data", "--output", "--steps", "--resume")
    may_change(cli, "--grid", "--split-filters", "--channels", "--gather-before")
    add_loading_arguments(cli, workers=2)
    add_store_argument(cli)
    add_exchange_arguments(cli)


class VolumeTrainer(loop.Trainer):
    """One rank's part of a run."""

    advice = "share a sample among more ranks (--grid), or lower --batch-size"
    unit, columns = "samples", ("epoch", "lr")

    def __init__(self, args: argparse.Namespace, hvd: ModuleType, task: Task) -> None:
        """Check the request, and read the checkpoint; nothing is exchanged yet.

        Raises:
            UsageError: grid, samples or checkpoint cannot be used.
        """
        self.args, self.hvd, self.task = args, hvd, task
        self.model, self.architecture = task.model, task.architecture
        self.layout = f", {'x'.join(map(str, args.grid))} a sample"
        self.groups = sample_groups(args, hvd, args.channels)
        self.figures = ("held_out_loss", *task.measure.figures) if args.held_out else ()
        if args.store is not None and args.synthetic:
            raise UsageError("--store keeps what was read, and --synthetic reads nothing: leave it")
        self.passes = ranks.passes(args, hvd)
        batch = args.batch_size * self.passes * self.groups
        self.run = Run(args, hvd, task.program, task.kind, batch)
        self._resumed = self.run.resumed()
        if self._resumed:
            if self._resumed.get("arch") != self.architecture:
                raise UsageError(
                    f"{self.run.checkpoint_path} is of {self._resumed.get('arch')}; the samples "
                    f"ask for {self.architecture}: resume with the samples it was started with"
                )
            self.model.load_state_dict(self._resumed["model"])

    def start(self) -> None:
        """Split the model, and give every rank the state of rank 0. A collective.

        Raises:
            UsageError: nothing is left to learn from, or the run that is resumed had other samples.
        """
        args, task, run = self.args, self.task, self.run
        learnt, held_out = self._hold_out()
        shapes = (tuple(source.shape) for source in (task.inputs, task.targets))
        run.follow(Order(len(learnt), args.seed, data=fingerprint(*shapes)))
        self.full_rate = scaled(args.lr, run.global_batch, args.lr_batch, args.lr_scaling)
        if run.leads:
            print(
                f"{run.program}: {len(learnt)} samples to learn from, {len(held_out)} held out; "
                f"{run.global_batch} a step, learning rate {self.full_rate:g}",
                file=sys.stderr,
            )
        self.grid = spatial.ProcessGrid(
            **dict(zip(AXES[-len(args.grid) :], args.grid, strict=True)), channels=args.channels
        )
        self.model = spatial.convert(
            self.model,
            self.grid,
            gather_before=args.gather_before,
            split_filters=args.split_filters,
        ).to(self.run.device)
        # Average over all ranks: the sum over a sample's blocks, the mean over samples.
        self.optimizer = self.hvd.DistributedOptimizer(
            torch.optim.Adam(self.model.parameters(), lr=args.lr),
            named_parameters=self.model.named_parameters(),
            **ranks.exchange_options(args, self.hvd),
        )
        self.slots = ranks.slots(args, self.hvd, self.model)
        spatial.keep_state_whole(self.model, self.optimizer)
        self.run.share_state(self.model, self.optimizer, self._resumed)
        self._resumed = {}
        self.replica = ranks.replica(args, self.hvd, self.model, passes=1)
        group = self._group()
        self.held_out = Blocks((task.inputs, task.targets), self.grid, held_out, group)
        self.loader = run.loader(
            Blocks((task.inputs, task.targets), self.grid, learnt, group),
            self.grid.sample_group,
            self.groups,
            None,
            self._assemble,
            self._sharing(),
        )

    def before_step(self) -> None:
        # The ranks of a group draw the same random numbers where they compute the same.
        seeds = (self.args.seed, self.run.position.step, self.grid.sample_group)
        torch.manual_seed(int(np.random.SeedSequence(seeds).generate_state(1)[0]))
        self.model.train()

    def batch(self) -> tuple[Any, Any]:
        """This rank's blocks of its group's samples."""
        inputs, targets = self.run.next_batch(self.loader)
        return inputs, targets

    def loss(self, inputs: Any, targets: Any) -> Tensor:
        return nn.functional.mse_loss(self.replica(inputs), targets)

    def learning_rate(self) -> float:
        epoch = self._epoch(self.run.position.samples + self.run.global_batch)
        return warmed_up(self.full_rate, self.args.warmup_epochs, epoch)

    def row(self) -> tuple[float, ...]:
        """Epochs that are done, as a fraction, and the learning rate of the last step."""
        return (self._epoch(self.run.position.samples), self.lr)

    def validate(self) -> tuple[float, ...]:
        """Figures of the samples that were held out, each counted once. A collective."""
        self.model.eval()
        # The losses, their number, and the sums of the measure.
        sums = torch.zeros(2 + self.task.measure.terms, dtype=torch.float64)
        for sample in range(self.grid.sample_group, len(self.held_out), self.groups):
            with region("load", kind="io"):
                inputs, targets = self._assemble([self.held_out[sample]])
            prediction = self.model(inputs)
            sums[0] += float(nn.functional.mse_loss(prediction, targets))
            sums[1] += 1
            sums[2:] += self.task.measure.sums(prediction, targets)
        # Ranks that share a sample have the same sums, so all sums count equally often.
        loss, count, *rest = self.hvd.allreduce(sums, name="held_out", op=self.hvd.Sum).tolist()
        # A rank that trains alone may have no samples.
        return (loss / count if count else math.nan, *self.task.measure.values(rest))

    def _hold_out(self) -> tuple[Indices, Indices]:
        """Samples to learn from, and those held out; rank 0 looks for all. A collective."""
        run, split = self.run, None
        with ranks.collective_errors(self.hvd, run.program):
            if run.leads:
                split = hold_out(self.task.groups(), self.args.held_out)
        learnt, held_out = self.hvd.broadcast_object(split, root_rank=0, name="held_out")
        return learnt, held_out

    def _epoch(self, samples: int) -> float:
        return samples / self.run.order.samples

    def _sharing(self) -> MPI.Comm | None:
        """Return the ranks with the same block of other samples, if they exchange samples."""
        if self.args.store is None:
            return None
        from mpi4py import MPI

        return MPI.COMM_WORLD.Split(self.hvd.rank() % self.grid.shape.size, self.hvd.rank())

    def _group(self) -> MPI.Comm | None:
        """The ranks that share each sample, if they are several."""
        size = self.grid.shape.size
        if size == 1:
            return None
        from mpi4py import MPI

        return MPI.COMM_WORLD.Split(self.hvd.rank() // size, self.hvd.rank())

    def _assemble(self, samples: list[tuple[Block, Block]]) -> tuple[Any, Any]:
        """Inputs and targets; Any: torch's functions take partitioned tensors, untyped."""
        sources = (self.task.inputs, self.task.targets)
        parts = zip(sources, zip(*samples, strict=True), strict=True)
        inputs, targets = (
            spatial.assemble(blocks, self.grid, source.shape[2:]).to(self.run.device)
            for source, blocks in parts
        )
        return inputs, targets


def open_arrays(
    args: argparse.Namespace, names: tuple[str, str], hvd: ModuleType, program: str
) -> tuple[spatial.Source, spatial.Source]:
    """Inputs and targets by their names: fields of a packed file, or .npy files of a folder.

    Args:
        args: its `data`, and those of `open_pack`, are looked at.
        names: names of inputs and targets.
        hvd: the exchange.
        program: the name that errors begin with.

    Raises:
        UsageError: one is missing, or holds something else.
    """
    data: Path = args.data
    if is_pack(data):
        file = open_pack(data, hvd, program, args)
        return file.field(names[0]), file.field(names[1])
    if args.stage_to:
        raise UsageError(f"--stage-to copies packed files, and {data} is none: pack it first")
    first, second = (spatial.open_array(data / f"{name}.npy") for name in names)
    return first, second
