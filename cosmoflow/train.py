"""Train CosmoFlow, each cube on one rank or on a grid of ranks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import ModuleType

import torch

from cosmoflow.data import Log1p, Universes, same_rows
from cosmoflow.model import CHANNELS, KIND, PARAMETERS, WIDTHS, CosmoFlow
from cosmoflow.zeldovich import ParticleUniverses
from hvd_ext import spatial
from hvd_ext.cli import at_least, run
from hvd_ext.errors import UsageError
from training import ranks, volumes
from training.arguments import Parser
from training.by_steps import StepLoop
from training.measures import ABSOLUTE_ERROR

PROGRAM = "cosmoflow.train"
WAVES, PARTICLES = "waves", "particles"
EXAMPLE = (
    "hvd-launch run -np 2 -- python -m cosmoflow.train --synthetic --grid 2x1x1 --width 32 "
    "--steps 200 --output runs/cosmoflow"
)


def parser() -> Parser:
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    files = "cubes.npy (N, 4, W, W, W) and labels.npy (N, 4)"
    volumes.add_arguments(cli, 3, files, (WAVES, PARTICLES))
    cli.add_argument(
        "--width", type=int, choices=WIDTHS, default=128, help="width W of synthetic cubes"
    )
    cli.add_argument(
        "--thin", type=at_least(1), default=1, help="divisor of the features of all layers"
    )
    cli.add_argument(
        "--per-side",
        type=at_least(1),
        default=2,
        metavar="N",
        help="cubes along each side of a universe of particles",
    )
    cli.add_argument(
        "--log1p", action="store_true", help="train on log(1 + x), for counts of particles"
    )
    return cli


def main(arguments: Sequence[str]) -> int:
    args, hvd = ranks.start(parser(), arguments)
    with ranks.collective_errors(hvd, PROGRAM):
        trainer = volumes.VolumeTrainer(args, hvd, task(args, hvd))
    StepLoop(trainer).train()
    return 0


def task(args: argparse.Namespace, hvd: ModuleType) -> volumes.Task:
    """Model and samples that the flags ask for.

    Raises:
        UsageError: they do not fit each other.
    """
    cubes: spatial.Source
    labels: spatial.Source
    if args.log1p and args.synthetic == WAVES:
        raise UsageError(
            f"--log1p: the samples of --synthetic {WAVES} are below -1 too: take {PARTICLES}, or "
            "--data with counts"
        )
    if args.synthetic == WAVES:
        waves = Universes(args.samples, args.width, args.seed)
        cubes, labels = waves.cubes, waves.labels
    elif args.synthetic:
        particles = ParticleUniverses(args.samples, args.width, args.seed, args.per_side)
        cubes, labels = particles.cubes, particles.labels
    else:
        cubes, labels = volumes.open_arrays(args, ("cubes", "labels"), hvd, PROGRAM)
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
    return volumes.Task(
        program=PROGRAM,
        kind=KIND,
        model=model,
        architecture=architecture,
        inputs=Log1p(cubes) if args.log1p else cubes,
        targets=labels,
        measure=ABSOLUTE_ERROR,
        groups=lambda: same_rows(labels[0:samples, 0:PARAMETERS]),
    )


if __name__ == "__main__":
    run(main, PROGRAM)
