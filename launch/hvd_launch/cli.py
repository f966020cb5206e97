"""The command line of hvd-launch: finds the subcommand, and separates the ranks' command."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from hvd_ext.cli import add_version, complete, report_misspelt_variables, run
from hvd_ext.errors import UsageError

# Each is a module in hvd_launch.commands with HELP, EXAMPLE, add_arguments(parser) and run(options,
# command).
SUBCOMMANDS = ("run", "exec", "env", "doctor", "tune")
# Subcommands that run the command after "--".
WITH_COMMAND = frozenset({"run", "exec"})


def entry() -> None:
    """The console script."""
    run(main, "hvd-launch")


def main(arguments: Sequence[str]) -> int:
    """Run one subcommand; returns its exit code.

    Words after the first "--" belong to the ranks and are never interpreted.
    """
    complete(lambda: parser(with_command=True))
    own, command, separated = separate(list(arguments))
    # `exec` runs in every rank; the program that started the ranks has reported them.
    if own[:1] != ["exec"]:
        report_misspelt_variables("hvd-launch")
    # A rank that only starts a program imports no more than that needs.
    names = own[:1] if own[:1] and own[0] in SUBCOMMANDS else SUBCOMMANDS
    top = parser(names)
    options, unknown = top.parse_known_args(own)
    name: str = options.subcommand
    takes_command = name in WITH_COMMAND or getattr(options, "kind", "") == "fusion"
    if unknown and takes_command and not separated and not unknown[0].startswith("-"):
        given = shlex.join(own[: len(own) - len(unknown)])
        raise UsageError(
            f"-- is missing before the command: hvd-launch {given} -- {shlex.join(unknown)}"
        )
    if unknown:
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    if name in WITH_COMMAND and not command:
        raise UsageError(
            f"no COMMAND: write it after --, as in: hvd-launch {name} "
            f"{'-np 2 ' if name == 'run' else ''}-- python x.py"
        )
    # One kind of tune runs a command, the other does not; both check it themselves.
    if separated and name not in WITH_COMMAND and name != "tune":
        raise UsageError(f"hvd-launch {name} runs no command: leave out -- and what follows")
    code: int = _module(name).run(options, tuple(command))
    return code


def separate(words: list[str]) -> tuple[list[str], list[str], bool]:
    """Return hvd-launch's words, the COMMAND's, and whether a "--" separates them."""
    at = words.index("--") if "--" in words else len(words)
    if words[:1] == ["exec"]:
        # In `horovodrun -np 4 hvd-launch exec python train.py`, COMMAND starts at the first word
        # that belongs to no option, and a "--" after that belongs to COMMAND.
        options = argparse.ArgumentParser()
        _module("exec").add_arguments(options)
        known = options._option_string_actions
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] != "--":
            takes_value = words[at] in known and known[words[at]].nargs != 0
            at += 1 + takes_value
    separated = words[at : at + 1] == ["--"]
    return words[:at], words[at + separated :], separated


def programs(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Complete COMMAND's first word from PATH; a shell completes the others as files."""
    folders = map(Path, os.get_exec_path() if not parsed_args.command else [])
    return [p.name for folder in folders if folder.is_dir() for p in folder.glob(f"{prefix}*")]


def parser(
    names: Sequence[str] = SUBCOMMANDS, with_command: bool = False
) -> argparse.ArgumentParser:
    """Return the parser of these subcommands; with COMMAND as a positional, to complete it."""
    top = argparse.ArgumentParser(
        prog="hvd-launch",
        description="Start training jobs with this machine's MPI and the settings that suit it.",
        epilog="example: hvd-launch run -np 4 -- python train.py",
    )
    add_version(top)
    subcommands = top.add_subparsers(required=True, metavar="SUBCOMMAND", dest="subcommand")
    for name in names:
        module = _module(name)
        child = subcommands.add_parser(
            name,
            help=module.HELP,
            epilog=f"example: {module.EXAMPLE}",
            # An abbreviated option is an error, so that new options change nothing.
            allow_abbrev=False,
        )
        module.add_arguments(child)
        if name in WITH_COMMAND:
            child.usage = f"hvd-launch {name} [OPTIONS] -- COMMAND"
            if with_command:
                child.add_argument("command", nargs="*").completer = programs  # type: ignore[attr-defined]
    return top


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"hvd_launch.commands.{name}")
