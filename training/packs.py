"""Packed files in place of folders."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from hvd_ext.data import PackedFile, Tables
from training import ranks


def is_pack(path: Path) -> bool:
    """Whether a path that a flag names is meant as a packed file."""
    return path.suffix == ".pack"


def open_pack(
    path: Path, hvd: ModuleType, program: str, stage_to: Path | None = None
) -> PackedFile:
    """Open a packed file, whose tables rank 0 reads for all. A collective.

    Args:
        path: the file.
        hvd: the exchange.
        program: the name that errors begin with.
        stage_to: as PackedFile's.

    Raises:
        SystemExit: it cannot be used; rank 0 has said why.
    """
    tables = ranks.read_on_rank_0(hvd, program, lambda: Tables.read(path))
    with ranks.collective_errors(hvd, program):
        return PackedFile(path, tables, stage_to=stage_to)
    raise AssertionError("unreachable")
