"""`hvd-launch env`: a preset as shell, JSON or a Slurm snippet, for any launcher."""

from __future__ import annotations

import argparse
import os

from hvd_launch.backends.detect import find_backend
from hvd_launch.backends.libraries import LIBRARIES
from hvd_launch.settings import FORMATS, PRESETS, render

HELP = "print the variables of a preset"
EXAMPLE = 'eval "$(hvd-launch env --preset mpi-opt)" && horovodrun -np 4 python train.py'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the variables of one of three configurations for jobs on GPUs: "
        + "; ".join(f"{name}: {text}" for name, text in PRESETS.items())
        + "."
    )
    parser.add_argument(
        "--backend", choices=sorted(LIBRARIES), help="MPI library (default: detected)"
    )
    parser.add_argument(
        "--preset",
        choices=sorted(PRESETS),
        default="mpi-opt",
        help="configuration (default: mpi-opt)",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="sh", help="output format (default: sh)"
    )


def run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    del command
    library = LIBRARIES[options.backend or find_backend().name]
    settings = (*library.settings(), *library.gpu_settings(options.preset, os.environ))
    title = f"{options.preset} for {library.title}: {PRESETS[options.preset]}"
    print(render(settings, options.format, title))
    return 0
