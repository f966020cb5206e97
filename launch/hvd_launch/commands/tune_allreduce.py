"""`hvd-launch tune allreduce`: from its arguments to its files."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from hvd_ext.cli import at_least, progress, size_bytes
from hvd_ext.errors import UsageError
from hvd_ext.system.files import write_text
from hvd_launch.tune.allreduce import device_command, simulate_command
from hvd_launch.tune.allreduce.native_rules import FILES
from hvd_launch.tune.allreduce.result import settings_text
from hvd_launch.tune.common.journal import Journal
from hvd_launch.tune.common.target import check_results, target_of

HELP = "the MPI library's allreduce algorithms by message size"
EXAMPLE = "hvd-launch tune allreduce -np 8 -H node1:4,node2:4 -o tuning"
_DESCRIPTION = """Time each of the MPI library's own allreduce algorithms, forced by its own
variables, and hvd_ext's; write the best by message size in the library's own form; then
run with it and without it, interleaved. Nothing is written unless the gain is significant.
After Ctrl-C the same command resumes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument(
        "--least", type=size_bytes, default="4KiB", help="shortest message (default: 4KiB)"
    )
    parser.add_argument(
        "--most", type=size_bytes, default="64MiB", help="longest message (default: 64MiB)"
    )
    parser.add_argument(
        "--rounds", type=at_least(2), default=6, help="jobs for each algorithm (default: 6)"
    )
    parser.add_argument(
        "--pairs",
        type=at_least(2),
        default=8,
        help="pairs of verification jobs, with and without the new settings (default: 8)",
    )
    parser.add_argument(
        "--no-table", action="store_true", help="do not measure hvd_ext's algorithms"
    )
    parser.add_argument(
        "--memory",
        choices=("host", "device"),
        default="host",
        help="memory of the messages; device measures carriers of gradients on GPUs, such as "
        "CUDA IPC and NCCL (default: host)",
    )
    simulate_command.add_arguments(parser)


def run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Tune; returns 0, with or without a gain."""
    if command:
        raise UsageError("tune allreduce runs no command: leave out -- and what follows")
    sizes = _sizes(options.least, options.most)
    if simulate_command.wanted(options):
        return simulate_command.run(options, sizes)
    if options.np == 1:
        raise UsageError("-np 1: an allreduce takes at least 2 ranks")
    target = target_of(options)
    if options.memory == "device":
        return device_command.run(options, sizes, target)
    from rich.console import Console

    from hvd_launch.tune.allreduce import report, tuning

    folder: Path = options.output
    check_results(folder, ("allreduce.json", "settings.sh", "table.json", *FILES))
    request = tuning.Request(
        target, sizes, options.rounds, options.pairs, folder, not options.no_table
    )
    journal = Journal(folder / "allreduce.jsonl", request.subject(target.library), options.fresh)
    with progress("tune allreduce") as advance:
        result = tuning.Tuning(request, journal, advance).run()
    if result.native is not None and result.native.overall.gained:
        text = settings_text(result.native, result.facts, options.np)
        write_text(folder / "settings.sh", text)
    else:
        (folder / "settings.sh").unlink(missing_ok=True)
    write_text(folder / "allreduce.json", report.dump(result))
    if options.json:
        print(report.dump(result), end="")
    else:
        report.print_result(result, folder.resolve(), Console())
    return 0


def _sizes(least: int, most: int) -> tuple[int, ...]:
    """Return the powers of two from `least` to `most`, both included."""
    if not 4 <= least <= most:
        raise UsageError(f"--least {least}, --most {most}: give 4 bytes or more, ascending")
    first, last = math.ceil(math.log2(least)), int(math.log2(most))
    if last < first:
        raise UsageError(f"--least {least}, --most {most}: no power of two lies between")
    return tuple(2**power for power in range(first, last + 1))
