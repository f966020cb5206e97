"""Train the mesh-tangling model, each sample on one rank or on a grid of ranks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from types import ModuleType

import numpy as np
import torch

from hvd_ext import spatial
from hvd_ext.cli import at_least, run
from hvd_ext.errors import UsageError
from mesh.data import Meshes
from mesh.flow import FlowMeshes
from mesh.model import CHANNELS, KIND, OUTPUTS, PRESETS, MeshModel, write_architecture
from training import ranks, volumes
from training.arguments import Parser
from training.by_steps import StepLoop
from training.measures import CELLS

PROGRAM = "mesh.train"
SYNTHETIC = {"displaced": Meshes, "flow": FlowMeshes}
EXAMPLE = (
    "hvd-launch run -np 4 -- python -m mesh.train --synthetic --grid 2x1 --steps 200 "
    "--output runs/mesh"
)


def parser() -> Parser:
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    volumes.add_arguments(
        cli, 2, "inputs.npy (N, 18, H, W) and masks.npy (N, 1, H, W)", tuple(SYNTHETIC)
    )
    cli.add_argument(
        "--preset", choices=PRESETS, default="small", help="model, and size of synthetic samples"
    )
    cli.add_argument(
        "--size",
        type=at_least(1),
        metavar="N",
        help="size of synthetic samples (default: the preset's)",
    )
    cli.add_argument(
        "--prediction",
        choices=OUTPUTS,
        default="pixel_shuffle",
        help="layer that turns channels into pixels; reshape, as published, cannot be split",
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
    size, architecture = PRESETS[args.preset]
    architecture = replace(architecture, output=args.prediction)
    if args.prediction == "reshape" and prod(args.grid) > 1:
        raise UsageError(
            "--prediction reshape mixes all of an image: with --grid use pixel_shuffle"
        )
    inputs: spatial.Source
    targets: spatial.Source
    if args.synthetic:
        meshes = SYNTHETIC[args.synthetic](args.samples, args.size or size, args.seed)
        inputs, targets = meshes.inputs, meshes.masks
    else:
        inputs, targets = volumes.open_arrays(args, ("inputs", "masks"), hvd, PROGRAM)
    samples, channels, *space = inputs.shape
    if len(space) != 2 or channels != CHANNELS or any(n % architecture.factor for n in space):
        raise UsageError(
            f"inputs of shape {tuple(inputs.shape)} are not (N, {CHANNELS}, H, W) with H and W "
            f"multiples of {architecture.factor}"
        )
    if tuple(targets.shape) != (samples, 1, *space):
        raise UsageError(
            f"masks of shape {tuple(targets.shape)} do not fit inputs of {tuple(inputs.shape)}: "
            f"they must be {(samples, 1, *space)}"
        )
    torch.manual_seed(args.seed)
    model = MeshModel(architecture)
    return volumes.Task(
        program=PROGRAM,
        kind=KIND,
        model=model,
        architecture=write_architecture(architecture),
        inputs=inputs,
        targets=targets,
        measure=CELLS,
        groups=lambda: np.arange(samples),
    )


if __name__ == "__main__":
    run(main, PROGRAM)
