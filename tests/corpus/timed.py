"""Times a program on all ranks, without their start: `tests.corpus.timed --worker PROGRAM`."""

from __future__ import annotations

import importlib
import runpy
import sys

from mpi4py import MPI

from testbed.ranks import report


def main(program: str) -> None:
    """Run the program between two barriers, and report its time in seconds."""
    # Loading it takes longer than some programs run.
    importlib.import_module("numpy")
    comm = MPI.COMM_WORLD
    comm.Barrier()
    start_s = MPI.Wtime()
    runpy.run_path(program, run_name="__main__")
    comm.Barrier()
    if comm.rank == 0:
        report(MPI.Wtime() - start_s)


if __name__ == "__main__":
    main(sys.argv[-1])
