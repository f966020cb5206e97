"""`hvd-launch tune allreduce --calibrate` and `--simulate`: from arguments to files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hvd_ext.cli import at_least, progress
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.system.files import write_text
from hvd_ext.system.mpi_libraries import LIBRARIES
from hvd_ext.units import counted
from hvd_launch.job import Host
from hvd_launch.machine import module
from hvd_launch.tune.common.target import Target, check_results, target_of

_TIMEOUT_S = 3600.0
_HOSTS = (2, 4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of both."""
    group = parser.add_argument_group("simulated clusters (with SimGrid)")
    group.add_argument(
        "--calibrate",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="TABLE",
        help="measure the parameters of a simulation on the first 2 and 4 hosts of -H, or take "
        "them "
        "from a table's rows of 2 and 4 nodes; writes platform.json",
    )
    group.add_argument(
        "--simulate",
        type=Path,
        metavar="PLATFORM",
        help="platform to simulate; writes rows of a table for --nodes",
    )
    group.add_argument(
        "--nodes",
        type=_counts,
        default=(64, 512),
        metavar="N,...",
        help="numbers of nodes (default: 64,512)",
    )
    group.add_argument(
        "--ranks-per-node",
        type=at_least(1),
        default=1,
        metavar="R",
        help="ranks on each node (default: 1)",
    )
    group.add_argument(
        "--library", metavar="NAME", help="MPI library to compare with (default: detected)"
    )
    group.add_argument(
        "--dry-run", action="store_true", help="print the simulations and their time; run none"
    )


def wanted(options: argparse.Namespace) -> bool:
    """Whether the options request one of these."""
    return options.calibrate is not None or options.simulate is not None


def run(options: argparse.Namespace, sizes: tuple[int, ...]) -> int:
    """Calibrate, or simulate.

    Raises:
        UsageError: options that do not go together, or a bad platform.
        HvdExtError: a program is missing, or failed.
    """
    if options.calibrate is not None and options.simulate is not None:
        raise UsageError("--calibrate and --simulate exclude each other: calibrate first")
    return _calibrate(options) if options.calibrate is not None else _simulate(options, sizes)


def _simulate(options: argparse.Namespace, sizes: tuple[int, ...]) -> int:
    from rich.console import Console

    from hvd_ext.allreduce.table import Table, dump, load
    from hvd_launch.simulate import platform
    from hvd_launch.simulate.cases import merge
    from hvd_launch.simulate.replay import check_installed
    from hvd_launch.tune.allreduce import simulated, simulated_report
    from hvd_launch.tune.common.journal import Journal

    request = simulated.Request(
        platform.load(options.simulate),
        options.nodes,
        options.ranks_per_node,
        sizes,
        _library(options.library),
    )
    planned = simulated.make_plan(request)
    console = Console()
    if options.dry_run:
        simulated_report.print_plan(planned, sizes, console)
        return 0
    check_installed()
    folder: Path = options.output
    table, picture = folder / "table.json", folder / "simulate.png"
    check_results(folder, ("simulate.json", table.name, picture.name))
    old = load(table).rows if table.exists() else ()
    journal = Journal(folder / "simulate.jsonl", request.subject(), options.fresh)
    with progress("simulate") as advance:
        rows = simulated.simulate(request, planned, journal, advance)
    write_text(table, dump(Table(merge(rows, old), str(table))))
    text = json.dumps(simulated_report.as_json(rows, planned), indent=2) + "\n"
    write_text(folder / "simulate.json", text)
    if rows and not simulated_report.draw(rows, picture):
        print("no picture: pip install matplotlib", file=sys.stderr)
    if options.json:
        print(text, end="")
        return 0
    simulated_report.print_rows(rows, console)
    for line in planned.refused:
        console.print(line, markup=False, highlight=False)
    console.print(
        f"Wrote {table}: hvd_ext uses it with\n    export HVD_EXT_TABLE={table.resolve()}",
        markup=False,
        soft_wrap=True,
    )
    return 0


def _calibrate(options: argparse.Namespace) -> int:
    from rich.console import Console

    from hvd_ext.allreduce.table import load
    from hvd_launch.simulate import calibration, platform
    from hvd_launch.simulate.replay import check_installed
    from hvd_launch.tune.allreduce import simulated_report

    check_installed()
    folder: Path = options.output
    check_results(folder, ("platform.json",))
    path = folder / "platform.json"
    start = platform.load(path) if path.exists() else platform.Platform()
    source = options.calibrate
    if source == Path():
        source = folder / "calibration.json"
        _measure(options, source)
    samples = calibration.samples_of(load(source).rows)
    with progress("calibrate") as advance:
        found = calibration.calibrate(samples, start, advance)
    write_text(path, platform.dump(found.platform))
    figures = calibration.figures(found)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        simulated_report.print_platform(figures, path.resolve(), Console())
    return 0


def _measure(options: argparse.Namespace, output: Path) -> None:
    """Time hvd_ext's algorithms on the first 2 and the first 4 hosts, one rank on each."""
    from hvd_launch.tune.common import jobs

    target = target_of(options)
    if len(target.hosts) < _HOSTS[0]:
        raise UsageError("--calibrate: name at least 2 hosts with -H, better 4")
    output.unlink(missing_ok=True)
    for count in _HOSTS:
        hosts = tuple(Host(host.name, 1) for host in target.hosts[:count])
        if len(hosts) < count:
            break
        command = [*module("hvd_ext.allreduce.measure"), "-o", str(output.resolve())]
        command += ["--least", str(options.least), "--most", str(options.most)]
        outcome = jobs.run(
            Target(target.backend, count, hosts), command, (), _TIMEOUT_S, lambda line: None
        )
        if outcome.code != 0:
            raise HvdExtError(f"measuring on {counted(count, 'host')} {outcome.reason}")


def _library(name: str | None) -> str:
    """Return the library whose own allreduce must be beaten.

    Raises:
        UsageError: SMPI does not have its choices.
        HvdExtError: no library was named, and none was found here.
    """
    from hvd_launch.backends.detect import find_backend

    found = name or find_backend().name
    known = {one.name: one.simulated_as for one in LIBRARIES.values() if one.simulated_as}
    if found not in known:
        raise UsageError(f"--library {found}: SMPI has the choices of {', '.join(known)}")
    return known[found]


def _counts(text: str) -> tuple[int, ...]:
    """An argparse type: whole numbers, ascending, with commas between."""
    count = at_least(2)
    return tuple(sorted({count(word) for word in text.split(",")}))
