"""`python -m hvd_ext script.py ARGS`: run a Horovod script over hvd_ext, unmodified."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from hvd_ext.cli import add_version, run
from hvd_ext.errors import UsageError

_EXAMPLE = "example: horovodrun -np 2 python -m hvd_ext train.py --epochs 3"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m hvd_ext", description=__doc__, epilog=_EXAMPLE)
    add_version(top)
    top.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    top.add_argument("script", metavar="SCRIPT", help="path of the script")
    top.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="its arguments")
    return top


def main(arguments: Sequence[str]) -> int:
    """Run the script that `arguments` begin with, as `python` would."""
    options = parser().parse_args(arguments)
    if not options.module and not Path(options.script).is_file():
        raise UsageError(f"script not found: {options.script!r}: give the path of a Python script")

    from hvd_ext.torch.auto import install

    install()
    sys.argv = [options.script, *options.arguments]
    if options.module:
        sys.path[0] = str(Path.cwd())
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(options.script).resolve().parent)
        runpy.run_path(options.script, run_name="__main__")
    return 0


if __name__ == "__main__":
    run(main, "hvd_ext")
