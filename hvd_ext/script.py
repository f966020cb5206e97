"""Run a script as `python` would, with something of hvd_ext installed before it begins."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

from hvd_ext.cli import add_version
from hvd_ext.errors import UsageError


def script_parser(module: str, text: str | None, example: str) -> argparse.ArgumentParser:
    """Return the parser of `python -m module`, which a script and its arguments follow."""
    top = argparse.ArgumentParser(prog=f"python -m {module}", description=text, epilog=example)
    add_version(top)
    top.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    top.add_argument("script", metavar="SCRIPT", help="path of the script")
    top.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments")
    return top


def run_script(options: argparse.Namespace, install: Callable[[], None]) -> int:
    """Run a script.

    Args:
        options: result of `script_parser`.
        install: called before the script begins.

    Raises:
        UsageError: the script does not exist.
    """
    if not options.module and not Path(options.script).is_file():
        raise UsageError(f"script not found: {options.script!r}: give the path of a Python script")
    install()
    sys.argv = [options.script, *options.arguments]
    if options.module:
        sys.path[0] = str(Path.cwd())
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(options.script).resolve().parent)
        runpy.run_path(options.script, run_name="__main__")
    return 0
