"""`hvd-launch exec`: inside a rank, sets its visible GPUs, then runs its program."""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from hvd_ext.errors import HvdExtError, UsageError
from hvd_launch.backends.libraries import LIBRARIES
from hvd_launch.machine import gpus
from hvd_launch.rank import visibility
from hvd_launch.rank.environment import rank_info
from hvd_launch.rank.gpus import rank_environment
from hvd_launch.rank.torchrun import torchrun_variables

HELP = "inside a rank: choose its visible GPUs, then run a command"
EXAMPLE = "mpirun -np 4 hvd-launch exec -- python train.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Replace this process, which a launcher has started as a rank, by COMMAND, with "
        "CUDA_VISIBLE_DEVICES set: it has no effect once the program has started."
    )
    parser.add_argument(
        "--visibility",
        choices=("auto", *visibility.STRATEGIES),
        default="auto",
        help="; ".join(f"{name}: {text}" for name, text in visibility.STRATEGIES.items())
        + "; auto: the choice that suits the MPI library (default: auto)",
    )
    parser.add_argument(
        "--backend",
        choices=sorted(LIBRARIES),
        help="MPI library (default: from the launcher's variables)",
    )
    # For `hvd-launch run`, which reads the rank's output in this form.
    parser.add_argument("--report", action="store_true", help=argparse.SUPPRESS)
    # Also for `hvd-launch run`: the number of ranks, and rank 0's address, for torchrun scripts.
    parser.add_argument("--job", metavar="SIZE,HOST,PORT", help=argparse.SUPPRESS)


def run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Run the command in this process's place; with --report, as its child."""
    here = rank_info(os.environ)
    if here is None:
        raise UsageError(
            "not started by a launcher, so this process has no rank: put hvd-launch exec between "
            "mpirun, srun or horovodrun and the program"
        )
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(
            f"{command[0]!r}: command not found on this host; check its spelling, and PATH"
        )
    environ = rank_environment(os.environ, here, options.visibility, options.backend, gpus())
    size = "1"
    if options.job is not None:
        size, address, port = options.job.split(",")
        environ |= torchrun_variables(environ, here, int(size), address, int(port))
    if options.report:
        # Imported here: a rank that needs no report starts without it.
        from hvd_launch.rank.foreign_mpi import looking_for_foreign_mpi, starter_of
        from hvd_launch.rank.relay import report, run_reporting

        library = LIBRARIES.get(options.backend)
        # Under srun, the library's own launcher is not used.
        own = library if library is not None and here.family == library.family else None
        packets = own is not None and own.mixes_packets
        asks_to_end = own.asks_to_end[1] if own is not None and own.asks_to_end else None
        starter = starter_of(here, os.environ) if here.rank == 0 else None
        look = looking_for_foreign_mpi(starter, int(size), report)
        return run_reporting(program, command, environ, here.rank, packets, look, asks_to_end)
    sys.stderr.flush()
    try:
        os.execve(program, command, environ)
    except OSError as error:
        raise HvdExtError(f"{program} cannot be started: {error.strerror}") from error
