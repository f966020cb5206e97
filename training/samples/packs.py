"""Packed files in place of folders."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hvd_ext.data import PackedFile, Tables
from hvd_ext.errors import UsageError
from training import ranks

if TYPE_CHECKING:
    from mpi4py import MPI


def is_pack(path: Path) -> bool:
    """Whether a path that a flag names is meant as a packed file."""
    return path.suffix == ".pack"


def open_pack(
    path: Path, hvd: ModuleType, program: str, args: argparse.Namespace | None = None
) -> PackedFile:
    """Open a packed file, whose tables rank 0 reads for all. A collective.

    Args:
        path: the file.
        hvd: the exchange.
        program: the name that errors begin with.
        args: its `stage_to` and `share_staging` are read; None: the file is not staged.

    Raises:
        SystemExit: it cannot be used; rank 0 has said why.
    """
    tables = ranks.read_on_rank_0(hvd, program, lambda: Tables.read(path))
    with ranks.collective_errors(hvd, program):
        if args is None:
            return PackedFile(path, tables)
        sharing: MPI.Comm | None = None
        if args.share_staging:
            if not args.stage_to:
                raise UsageError("--share-staging is how --stage-to copies: give --stage-to DIR")
            from mpi4py import MPI  # which the exchange has started

            sharing = MPI.COMM_WORLD
        return PackedFile(path, tables, stage_to=args.stage_to, share_staging=sharing)
    raise AssertionError("unreachable")
