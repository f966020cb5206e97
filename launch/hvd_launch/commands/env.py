"""`hvd-launch env`: the variables of `hvd-launch run`, for any launcher."""

from __future__ import annotations

import argparse
import os
import sys

from hvd_launch.backends.detect import find_backend
from hvd_launch.backends.libraries import LIBRARIES
from hvd_launch.job_settings import DEFAULT_PRESET, job_settings
from hvd_launch.job_settings import add_arguments as add_settings
from hvd_launch.settings import FORMATS, PRESETS, render

HELP = "print the variables that run sets"
EXAMPLE = 'eval "$(hvd-launch env)" && mpirun -np 4 python train.py'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the variables that hvd-launch run sets for a job, with a reason for each, so that "
        "horovodrun and other launchers can use them."
    )
    add_settings(parser)
    parser.add_argument(
        "--format", choices=FORMATS, default="sh", help="output format (default: sh)"
    )


def run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    del command
    library = LIBRARIES[options.backend or find_backend().name]
    found = job_settings(library, os.environ, options.preset, options.gpus, options.ucx)
    preset = options.preset or DEFAULT_PRESET
    title = f"{preset} for {library.title}: {PRESETS[preset]}"
    if not found.has_gpus:
        title = f"{library.title}, hosts without GPUs: --gpus N prints those of hosts with N"
    print(render(found.given, options.format, title))
    for setting in found.kept:
        print(
            f"hvd-launch: note: {setting.name} is kept as you set it: run would set "
            f"{setting.value!r}",
            file=sys.stderr,
        )
    return 0
