"""`python -m hvd_ext.c10d script.py ARGS`: run a script of torch.distributed over hvd_ext."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from hvd_ext.c10d.auto import has_made_a_group, install
from hvd_ext.c10d.started_again import start_through
from hvd_ext.cli import run
from hvd_ext.script import run_script, script_parser

_EXAMPLE = "example: torchrun --nproc-per-node 2 -m hvd_ext.c10d train.py --epochs 3"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    return script_parser("hvd_ext.c10d", __doc__, _EXAMPLE)


def main(arguments: Sequence[str]) -> int:
    """Run the script that `arguments` begin with, as `python` would."""
    options = parser().parse_args(arguments)

    def prepare() -> None:
        install()
        start_through("hvd_ext.c10d", options.script, is_module=options.module)

    code = run_script(options, prepare)
    # Torchrun's variables, which hvd-launch sets too.
    size, rank = (os.environ.get(name) for name in ("WORLD_SIZE", "RANK"))
    if rank == "0" and size != "1" and not has_made_a_group():
        why = f"the script made no process group, so each of the {size} processes worked alone"
        if "horovod.torch" in sys.modules:
            why = "the script uses Horovod: start it with python -m hvd_ext"
        print(f"hvd_ext: note: {why}", file=sys.stderr)
    return code


if __name__ == "__main__":
    run(main, "hvd_ext.c10d")
