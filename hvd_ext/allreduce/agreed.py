"""The table of algorithms that all ranks of a job use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_ext import settings
from hvd_ext.allreduce.table import Table, built_in, load

if TYPE_CHECKING:
    from mpi4py import MPI


def read_table(world: MPI.Comm) -> Table:
    """The table that rank 0 reads, the same on every rank; collective."""
    table: Table | None = None
    problem: Exception | None = None
    if world.rank == 0:
        path = settings.table_path()
        try:
            table = load(Path(path)) if path else built_in(_library())
        except Exception as error:  # the other ranks wait for what this one says
            problem = error
    table, problem = world.bcast((table, problem))
    if problem is not None:
        raise problem
    assert table is not None
    return table


def _library() -> str:
    """The name of the MPI library; "" where the ranks are not MPI's, which are of one node."""
    mpi = sys.modules.get("mpi4py.MPI")
    return str(mpi.Get_library_version()) if mpi else ""
