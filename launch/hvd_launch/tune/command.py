"""The subcommand `hvd-launch tune`: its arguments, and where its results go."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from hvd_ext.errors import UsageError
from hvd_ext.units import parse_bytes
from hvd_launch.backends.detect import find_backend
from hvd_launch.job import check_size, parse_hosts
from hvd_launch.machine import check_hosts
from hvd_launch.run.supervise import handle
from hvd_launch.tune.common.files import write
from hvd_launch.tune.common.jobs import Target
from hvd_launch.tune.common.journal import Journal
from hvd_launch.tune.common.progress import progress

HELP = "find the best settings by measuring: tune allreduce, tune fusion"
EXAMPLE = "hvd-launch tune allreduce -np 8 -H node1:4,node2:4 -o tuning"
_ALLREDUCE = """Time each of the MPI library's own allreduce algorithms, forced by its own
variables, and hvd_ext's; write the best by message size in the library's own form; run again
with it and without it, in turns. Nothing is written where there is no gain beyond doubt.
Ctrl-C at any time: the same command goes on where it was."""
_FUSION = """Run COMMAND for short times with HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME
at values that a model proposes; compare the best with Horovod's defaults and with its
HOROVOD_AUTOTUNE. In the words of COMMAND {run} becomes the number of the run, for programs that
want a new folder each time. Ctrl-C at any time: the same command goes on where it was."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `allreduce` and `fusion` with their arguments."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    allreduce = kinds.add_parser(
        "allreduce",
        help="the MPI library's allreduce algorithms by message size",
        description=_ALLREDUCE,
        epilog="example: hvd-launch tune allreduce -np 8 -H node1:4,node2:4 -o tuning",
    )
    _add_target(allreduce)
    allreduce.add_argument("--least", default="4KiB", help="shortest message (4KiB)")
    allreduce.add_argument("--most", default="64MiB", help="longest message (64MiB)")
    allreduce.add_argument("--rounds", type=int, default=6, help="jobs of each algorithm (6)")
    allreduce.add_argument(
        "--pairs", type=int, default=8, help="jobs with the choice, and without it (8)"
    )
    allreduce.add_argument(
        "--no-table", action="store_true", help="leave hvd_ext's own algorithms out"
    )
    fusion = kinds.add_parser(
        "fusion",
        help="Horovod's fusion threshold and cycle time",
        usage="hvd-launch tune fusion [-h] -np N [-H HOST:SLOTS,...] [-o DIR] ... -- COMMAND",
        description=_FUSION,
        epilog="example: hvd-launch tune fusion -np 4 -o tuning -- python train.py --steps 50",
    )
    _add_target(fusion)
    fusion.add_argument(
        "--rate",
        metavar="REGEX",
        help="finds the throughput in what COMMAND prints, as its first group "
        "(default: a number before img/sec, images/s, samples/s, it/s and the like)",
    )
    fusion.add_argument(
        "--seconds", type=float, default=600.0, help="stop each run after so long (600)"
    )
    fusion.add_argument("--trials", type=int, default=8, help="settings that are tried (8)")
    fusion.add_argument(
        "--pairs", type=int, default=5, help="runs of the best, of the defaults, of autotune (5)"
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-np", type=int, required=True, metavar="N", help="number of ranks")
    parser.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="where to run them")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("tuning"),
        metavar="DIR",
        help="folder of the measurements and results, which all hosts see (tuning)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="begin anew; older measurements are moved aside"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Tune; 0, whether anything was gained or not."""
    # A scheduler that stops this ends the running job, as Ctrl-C does.
    handle((signal.SIGTERM, signal.SIGHUP), _stop)
    check_size(options.np)
    if options.pairs < 2:
        raise UsageError(f"--pairs {options.pairs}: an interval takes at least 2")
    if options.output.exists() and not options.output.is_dir():
        raise UsageError(f"-o {options.output}: is no folder")
    hosts = parse_hosts(options.hosts) if options.hosts is not None else ()
    check_hosts(hosts, os.environ)
    slots = sum(host.slots for host in hosts)
    if hosts and slots < options.np:
        raise UsageError(f"-np {options.np}: the hosts of -H have {slots} slots")
    kinds: dict[str, Callable[[argparse.Namespace, tuple[str, ...], Target], int]] = {
        "allreduce": _allreduce,
        "fusion": _fusion,
    }
    return kinds[options.kind](options, command, Target(find_backend(), options.np, hosts))


def _stop(number: int, _: object) -> None:
    sys.exit(128 + number)


def _allreduce(options: argparse.Namespace, command: tuple[str, ...], target: Target) -> int:
    from rich.console import Console

    from hvd_launch.tune.allreduce import report as allreduce_report
    from hvd_launch.tune.allreduce import tuning as allreduce

    if command:
        raise UsageError("tune allreduce runs no command: leave out -- and what follows")
    if options.np < 2:
        raise UsageError("-np 1: an allreduce takes at least 2 ranks")
    if options.rounds < 2:
        raise UsageError(f"--rounds {options.rounds}: give 2 or more")
    sizes = _sizes(parse_bytes(options.least), parse_bytes(options.most))
    folder: Path = options.output
    request = allreduce.Request(
        target, sizes, options.rounds, options.pairs, folder, not options.no_table
    )
    version = ".".join(map(str, target.backend.version))
    subject = request.subject(f"{target.backend.name} {version}")
    journal = Journal(folder / "allreduce.jsonl", subject, options.fresh)
    with progress("tune allreduce") as advance:
        result = allreduce.Tuning(request, journal, advance).run()
    if result.native is not None and result.native.overall.gained:
        text = allreduce.settings_text(result.native, result.facts, options.np)
        write(folder / "settings.sh", text)
    else:
        (folder / "settings.sh").unlink(missing_ok=True)
    write(folder / "allreduce.json", allreduce_report.dump(result))
    if options.json:
        print(allreduce_report.dump(result), end="")
    else:
        console = Console(width=max(Console().width, 120))
        allreduce_report.print_result(result, folder.resolve(), console)
    return 0


def _fusion(options: argparse.Namespace, command: tuple[str, ...], target: Target) -> int:
    from hvd_launch.tune.fusion import command as fusion_command

    return fusion_command.run(options, command, target)


def _sizes(least: int, most: int) -> tuple[int, ...]:
    """Powers of two from the first not below `least` to the last not above `most`."""
    if not 4 <= least <= most:
        raise UsageError(f"--least {least}, --most {most}: give 4 bytes or more, ascending")
    first, last = math.ceil(math.log2(least)), int(math.log2(most))
    if last < first:
        raise UsageError(f"--least {least}, --most {most}: no power of two lies between")
    return tuple(2**power for power in range(first, last + 1))
