"""`python -m hvd_ext script.py ARGS`: run a Horovod script over hvd_ext, unmodified."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hvd_ext.cli import run
from hvd_ext.script import run_script, script_parser

_EXAMPLE = "example: hvd-launch run -np 2 -- python -m hvd_ext train.py --epochs 3"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return script_parser("hvd_ext", __doc__, _EXAMPLE)


def main(arguments: Sequence[str]) -> int:
    """Run the script that `arguments` begin with, as `python` would."""

    def install() -> None:
        from hvd_ext.torch.auto import install

        install()

    return run_script(parser().parse_args(arguments), install)


if __name__ == "__main__":
    run(main, "hvd_ext")
