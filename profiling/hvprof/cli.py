"""The command line of hvprof: finds the subcommand."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from hvd_ext import cli

# Each is a module in hvprof.commands with HELP, ABOUT, EXAMPLE, add_arguments(parser),
# run(options).
SUBCOMMANDS = {
    "record": "record",
    "env": "env",
    "close": "close",
    "link": "link",
    "import": "import_",
    "report": "report",
    "compare": "compare",
    "check": "check",
    "audit": "audit",
    "layers": "layers",
    "limits": "limits",
    "hang": "running.hang",
    "watch": "running.watch",
    "export": "running.export",
    "project": "project",
    "whatif": "whatif",
}


def entry() -> None:
    """The console script `hvprof`."""
    cli.run(main, "hvprof")


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    top = argparse.ArgumentParser(
        prog="hvprof",
        description="Record the communication of an MPI or torch.distributed job, and analyze it.",
        epilog="example: hvprof record -o runs/a -- hvd-launch run -np 2 -- python train.py",
    )
    cli.add_version(top)
    children = top.add_subparsers(metavar="COMMAND", required=True)
    for name, module_name in SUBCOMMANDS.items():
        module = importlib.import_module(f"hvprof.commands.{module_name}")
        child = children.add_parser(
            name,
            help=module.HELP,
            description=module.ABOUT,
            epilog=f"example: hvprof {module.EXAMPLE}",
        )
        module.add_arguments(child)
        child.set_defaults(run=module.run)
    return top


def main(arguments: Sequence[str]) -> int:
    """Run one subcommand; returns its exit code."""
    top = parser()
    cli.complete(lambda: top)
    cli.report_misspelt_variables("hvprof")
    options = top.parse_args(arguments)
    code: int = options.run(options)
    return code
