"""`logs_ahead FILE LINE...`: rank 0 alone appends lines to a log; for in_turn.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI


def main(arguments: Sequence[str] | None = None) -> int:
    path, *lines = arguments or ()
    if MPI.COMM_WORLD.rank == 0:
        with Path(path).open("a") as log:
            log.writelines(f"{line}\n" for line in lines)
    return 0
