"""Train CosmoFlow, each cube on one rank or on a grid of ranks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import ModuleType

import torch

from cosmoflow.data import Universes
from cosmoflow.model import CHANNELS, KIND, PARAMETERS, WIDTHS, CosmoFlow
from hvd_ext import spatial
from hvd_ext.cli import at_least, run
from hvd_ext.errors import UsageError
from training import loop, ranks, volumes
from training.arguments import Parser

PROGRAM = "cosmoflow.train"
EXAMPLE = (
    "horovodrun -np 2 python -m cosmoflow.train --synthetic --grid 2x1x1 --width 32 "
    "--steps 200 --output runs/cosmoflow"
)


def parser() -> Parser:
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    volumes.add_arguments(cli, 3, "cubes.npy (N, 4, W, W, W) and labels.npy (N, 4)")
    cli.add_argument("--width", type=int, choices=WIDTHS, default=128, help="W of procedural cubes")
    cli.add_argument(
        "--thin", type=at_least(1), default=1, help="divides the features of all layers"
    )
    return cli


def main(arguments: Sequence[str]) -> int:
    args, hvd = ranks.start(parser(), arguments)
    with ranks.collective_errors(hvd, PROGRAM):
        trainer = volumes.VolumeTrainer(args, hvd, task(args, hvd))
    loop.train(trainer)
    return 0


def task(args: argparse.Namespace, hvd: ModuleType) -> volumes.Task:
    """Model and samples that the flags ask for.

    Raises:
        UsageError: they do not fit each other.
    """
    cubes: spatial.Source
    labels: spatial.Source
    if args.synthetic:
        universes = Universes(args.samples, args.width, args.seed)
        cubes, labels = universes.cubes, universes.labels
    else:
        cubes, labels = volumes.open_arrays(args.data, ("cubes", "labels"), hvd, PROGRAM)
    samples, channels, *space = cubes.shape
    if len(space) != 3 or channels != CHANNELS or len(set(space)) != 1:
        raise UsageError(f"cubes of shape {tuple(cubes.shape)} are not (N, {CHANNELS}, W, W, W)")
    if tuple(labels.shape) != (samples, PARAMETERS):
        raise UsageError(
            f"labels of shape {tuple(labels.shape)} do not fit {samples} cubes: "
            f"they must be {(samples, PARAMETERS)}"
        )
    torch.manual_seed(args.seed)
    model = CosmoFlow(space[0], thin=args.thin)
    architecture = {"width": space[0], "thin": args.thin}
    return volumes.Task(PROGRAM, KIND, model, architecture, cubes, labels)


if __name__ == "__main__":
    run(main, PROGRAM)
