"""The subcommand `hvd-launch tune`, with a kind of tuning each."""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType

from hvd_ext.cli import exit_on_sigterm
from hvd_launch.tune.common import target

HELP = "measure and choose settings: tune allreduce, tune fusion"
EXAMPLE = "hvd-launch tune allreduce -np 8 -H node1:4,node2:4 -o tuning"
# Each is a module like those of the subcommands.
KINDS = ("allreduce", "fusion")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name in KINDS:
        module = _module(name)
        kind = kinds.add_parser(name, help=module.HELP, epilog=f"example: {module.EXAMPLE}")
        target.add_arguments(kind)
        module.add_arguments(kind)


def run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Tune; returns 0, with or without a gain."""
    # If a scheduler stops this, the running job ends, as on Ctrl-C.
    exit_on_sigterm()
    code: int = _module(options.kind).run(options, command)
    return code


def _module(kind: str) -> ModuleType:
    return importlib.import_module(f"hvd_launch.commands.tune_{kind}")
