"""Shared parts of command lines: exit codes, argument types, completion, a progress bar."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.system.files import check_writable
from hvd_ext.units import parse_bytes
from hvd_ext.variables import misspelt
from hvd_ext.version import VERSION


def run(main: Callable[[Sequence[str]], int], program: str) -> None:
    """Run `main(arguments)` as the process's only work and exit with its code.

    An HvdExtError becomes one line on standard error and its `exit_code`; Ctrl-C
    becomes 130; a reader that closed the pipe (`| head`) is not an error.
    """
    code = 0
    with ignore_broken_pipe():
        try:
            code = main(sys.argv[1:])
            if sys.stdout:  # None if standard output was closed when the program started
                sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            # Errors of other files are HvdExtErrors, so this is standard output, on a full disk.
            code = 1
            print(f"{program}: error: {error}", file=sys.stderr)
        except HvdExtError as error:
            code = error.exit_code
            print(f"{program}: error: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            code = 130
            print(f"{program}: interrupted", file=sys.stderr)
    sys.exit(code)


def add_version(parser: argparse.ArgumentParser) -> None:
    """Give a command the option --version."""
    parser.add_argument("--version", action="version", version=f"hvd_ext {VERSION}")


def report_misspelt_variables(program: str) -> None:
    """Warn on standard error of variables that look like the project's and have no effect."""
    for line in misspelt(os.environ):
        print(f"{program}: warning: {line}", file=sys.stderr)


def complete(parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Answer a shell that asks how to complete a command line, and exit; else do nothing.

    argcomplete's script, once the shell has evaluated it, runs the program to ask.
    """
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser(), always_complete_options="long")


@contextlib.contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """End the block without an error when the reader of its output closed the pipe."""
    try:
        yield
    except BrokenPipeError:
        pass
    except SystemExit as left:
        # rich's Console would exit with 1 on a closed pipe.
        if not isinstance(left.__context__, BrokenPipeError):
            raise
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except OSError:
                # At exit, the interpreter would report an error for text that is still buffered.
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def exit_on_sigterm() -> None:
    """Make SIGTERM and SIGHUP raise SystemExit, so that this process ends those it started."""

    def leave(number: int, frame: FrameType | None) -> None:
        # A second signal while jobs are being ended would leave some of them running.
        for again in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(again, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, leave)


def at_least(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """An argparse type: a whole number from `least` to `most`."""

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text!r} is more than {most}")
        return value

    return whole_number


def above_zero(text: str) -> float:
    """An argparse type: a finite number above 0."""
    return _number(text, lambda value: value > 0, "above 0")


def not_negative(text: str) -> float:
    """An argparse type: 0 or a finite number above it."""
    return _number(text, lambda value: value >= 0, ">= 0")


def size_bytes(text: str) -> int:
    """An argparse type: a size such as "4 MiB", in bytes."""
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def output_file(text: str) -> Path:
    """An argparse type: an output path, checked before the work begins."""
    try:
        return check_writable(Path(text))
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _number(text: str, holds: Callable[[float], bool], rule: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (holds(value) and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {rule}")
    return value


class Advance(Protocol):
    """Shows the progress of the work."""

    def __call__(self, completed: int, note: str = "", total: int | None = None) -> None:
        """Show how many pieces are done, the total if it has changed, and the current piece."""


@contextlib.contextmanager
def progress(title: str, total: int | None = None, *, shown: bool = True) -> Iterator[Advance]:
    """Show progress on standard error: a bar on a terminal, a line for each note elsewhere.

    Args:
        title: name of the work.
        total: number of pieces of work, if known.
        shown: False on ranks that print nothing.
    """
    if not shown:
        yield lambda completed, note="", total=None: None
    elif not sys.stderr.isatty():
        yield _lines(title, total)
    else:
        with _bar(title, total) as advance:
            yield advance


def _lines(title: str, total: int | None) -> Advance:
    start_s = time.monotonic()
    known = total

    def advance(completed: int, note: str = "", total: int | None = None) -> None:
        nonlocal known
        known = known if total is None else total
        if note:
            elapsed_s = time.monotonic() - start_s
            of = "" if known is None else f"/{known}"
            line = f"{title} {completed}{of}  {note}  [{elapsed_s:.0f} s]"
            print(line, file=sys.stderr, flush=True)

    return advance


@contextlib.contextmanager
def _bar(title: str, total: int | None) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(title, total=total, note="")

        def advance(completed: int, note: str = "", total: int | None = None) -> None:
            bars.update(task, completed=completed)
            if total is not None:
                bars.update(task, total=total)
            if note:
                bars.update(task, note=note)

        yield advance
