"""A program of which rank 1 alone meets an error; for in_turn.py."""

from __future__ import annotations

from collections.abc import Sequence

import horovod.torch as hvd

from hvd_ext.errors import UsageError
from training import ranks


def main(arguments: Sequence[str]) -> int:
    hvd.init()
    with ranks.collective_errors(hvd, "program"):
        if hvd.rank() == 1:
            raise UsageError("no such disk")
    print("went on")
    return 0
