"""Four nodes stage FILE to FOLDER/nodeN in pieces of so many bytes; "killed": rank 1 dies at it."""

from __future__ import annotations

import os
import signal

from mpi4py import MPI

from hvd_ext.cli import run
from hvd_ext.data import PackedFile, Tables
from hvd_ext.data.staging import staging


def main(arguments: list[str]) -> int:
    path, folder, piece_bytes, *how = arguments
    comm = MPI.COMM_WORLD
    staging.PIECE_BYTES = int(piece_bytes)
    written = staging._write

    def until_killed(descriptor: int, data: staging.Bytes, offset: int) -> None:
        if how and comm.rank == 1 and offset > 5 * staging.PIECE_BYTES:
            os.kill(os.getpid(), signal.SIGKILL)
        written(descriptor, data, offset)

    staging._write = until_killed
    tables = comm.bcast(Tables.read(path) if comm.rank == 0 else None)
    with PackedFile(path, tables, stage_to=f"{folder}/node{comm.rank}", share_staging=comm) as file:
        assert file.copy
        assert file.copy.wait(60)
        read = comm.allreduce(file.bytes_read)
    if comm.rank == 0:
        print(f"{read} bytes were read")
    return 0


if __name__ == "__main__":
    run(main, "staged_by_nodes")
