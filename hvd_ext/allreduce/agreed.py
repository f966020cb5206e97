"""The table of algorithms that all ranks of a job use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_ext import variables
from hvd_ext.allreduce.table import Table, built_in, load, parse
from hvd_ext.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI


def read_table(world: MPI.Comm) -> Table:
    """The table that rank 0 reads, the same on every rank; collective.

    Raises:
        UsageError: on every rank, if it cannot be read.
    """
    source, content, problem = "", b"", ""
    if world.rank == 0:
        try:
            if source := variables.TABLE.read() or "":
                load(path := Path(source))
                content = path.read_bytes()
        except Exception as error:  # the other ranks wait for this rank's answer
            problem = str(error)
    source, content, problem = world.bcast((source, content, problem))
    if problem:
        raise UsageError(problem)
    return parse(content, source) if source else built_in(library())


def library() -> str:
    """The MPI library's text about itself; "" if the ranks, all on one node, run without MPI."""
    mpi = sys.modules.get("mpi4py.MPI")
    return str(mpi.Get_library_version()) if mpi else ""
