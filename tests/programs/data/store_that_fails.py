"""Two ranks exchange samples of FILE, as two nodes; rank 1 is killed, or its sample is damaged."""

from __future__ import annotations

import os
import signal
import sys

from mpi4py import MPI

from hvd_ext.cli import run
from hvd_ext.data import DataLoader, Order, PackedFile
from hvd_ext.data.store import store
from hvd_ext.errors import HvdExtError


def main(arguments: list[str]) -> int:
    path, how = arguments
    comm = MPI.COMM_WORLD
    store.sharing_memory = lambda comm: comm.Split(comm.rank)
    file = PackedFile(path)
    loader = DataLoader(
        file, 1, Order(len(file), 1), rank=comm.rank, size=2, store="memory", comm=comm
    )
    try:
        for number in range(10 * len(file)):
            if (how, comm.rank, number) == ("killed", 1, 3 * len(file)):
                os.kill(os.getpid(), signal.SIGKILL)
            next(loader)
    except HvdExtError as error:
        # What a trainer does: no farewell, the launcher ends the others.
        print(f"error: rank {comm.rank}: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    return 0


if __name__ == "__main__":
    run(main, "store_that_fails")
