"""The hosts of a tuning's jobs, and the folder of its results."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hvd_ext.errors import UsageError
from hvd_ext.system.files import check_writable, make_folder
from hvd_ext.units import counted
from hvd_launch.backends import slurm
from hvd_launch.backends.detect import find_backend
from hvd_launch.backends.libraries import Backend
from hvd_launch.job import Host, check_size, parse_hosts
from hvd_launch.machine import check_hosts
from hvd_launch.settings import Setting


@dataclass(frozen=True)
class Target:
    """The subject of a tuning: an MPI library with a number of ranks on these hosts."""

    backend: Backend
    size: int
    hosts: tuple[Host, ...]

    @property
    def names(self) -> list[str]:
        """Return the hosts and their slots; by default the scheduler's, or this machine."""
        if self.hosts or slurm.allocated(os.environ):
            return [f"{host.name}:{host.slots}" for host in self.hosts]
        return [socket.gethostname()]

    @property
    def library(self) -> str:
        """Return the library's name and version, for a journal."""
        return f"{self.backend.name} {'.'.join(map(str, self.backend.version))}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-np", type=int, metavar="N", help="number of ranks")
    parser.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts, and ranks on each (default: this machine)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("tuning"),
        metavar="DIR",
        help="folder for measurements and results, on storage that all hosts share "
        "(default: tuning)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="start over, and rename older measurements"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def target_of(options: argparse.Namespace) -> Target:
    """Return the target of the options.

    Raises:
        UsageError: a host is unknown, or has too few slots.
        HvdExtError: no MPI library was found.
    """
    if options.np is None:
        raise UsageError("-np is missing: give the number of ranks, such as -np 4")
    check_size(options.np)
    hosts = parse_hosts(options.hosts) if options.hosts is not None else ()
    check_hosts(hosts, os.environ)
    slots = sum(host.slots for host in hosts)
    if hosts and slots < options.np:
        raise UsageError(
            f"-np {options.np}: -H has only {counted(slots, 'slot')}: lower -np or add hosts"
        )
    return Target(find_backend(), options.np, hosts)


def check_results(folder: Path, names: Iterable[str]) -> None:
    """Make the folder; raises a UsageError now if results could not be written later."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"-o {folder}: not a folder")
    make_folder(folder)
    for name in names:
        check_writable(folder / name)


def check_unset(settings: Iterable[Setting]) -> None:
    """Raise a UsageError if the environment sets a variable that is to be tuned.

    It would also apply to the jobs that use the library's default.
    """
    for name in sorted({setting.name for setting in settings}):
        if name in os.environ:
            raise UsageError(
                f"{name}={os.environ[name]!r} is set, but tune measures it: unset {name}"
            )
