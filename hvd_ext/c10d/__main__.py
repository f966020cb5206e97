"""`python -m hvd_ext.c10d script.py ARGS`: run a script of torch.distributed over hvd_ext."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hvd_ext.c10d.auto import install
from hvd_ext.cli import run
from hvd_ext.script import run_script, script_parser

_EXAMPLE = "example: torchrun --nproc-per-node 2 -m hvd_ext.c10d train.py --epochs 3"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return script_parser("hvd_ext.c10d", __doc__, _EXAMPLE)


def main(arguments: Sequence[str]) -> int:
    """Run the script that `arguments` begin with, as `python` would."""
    return run_script(parser(), arguments, install)


if __name__ == "__main__":
    run(main, "hvd_ext.c10d")
