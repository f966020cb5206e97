"""What goes between hosts, a rank each, as samples are kept and staged; rank 0 prints it as JSON.

Arguments: a packed file, and a folder that each host has of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

from mpi4py import MPI

from hvd_ext.cli import run
from hvd_ext.data import DataLoader, Order, PackedFile, Tables
from hvd_ext.data.staging import staging
from hvd_ext.units import MIB

EPOCHS, AHEAD = 4, 2


def went_out() -> int:
    """Bytes that this host has sent on its link so far."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    (counters,) = (line.split(":")[1].split() for line in lines if line.strip().startswith("eth0:"))
    return int(counters[8])


def sent_by(order: Order, lengths: list[int], steps: int, hosts: int) -> list[int]:
    """What each host sends in so many steps: whoever needs a sample first sends it to others."""
    owner: dict[int, int] = {}
    sent = [0] * hosts
    for position in range(steps * hosts):
        sample, user = order.sample(position), position % hosts
        if owner.setdefault(sample, user) != user:
            sent[owner[sample]] += lengths[sample]
    return sent


def main(arguments: list[str]) -> int:
    path, folder = arguments
    comm = MPI.COMM_WORLD
    tables = comm.bcast(Tables.read(Path(path)) if comm.rank == 0 else None)
    with PackedFile(path, tables) as file:
        order = Order(len(file), seed=1)
        loader = DataLoader(
            file, 1, order, rank=comm.rank, size=comm.size, prefetch_factor=AHEAD, store="memory"
        )
        loader.start()
        comm.Barrier()
        before = went_out()
        for _ in range(EPOCHS):
            list(loader)
        steps = -(-EPOCHS * len(file) // comm.size)
        loader.close()
        comm.Barrier()
        kept = {
            "wire_bytes": comm.gather(went_out() - before),
            "sent_bytes": comm.gather(loader.statistics().bytes_sent),
            "expected_bytes": sent_by(order, file.lengths.tolist(), steps + AHEAD, comm.size),
        }
    staging.PIECE_BYTES = MIB
    comm.Barrier()
    before = went_out()
    with PackedFile(path, tables, stage_to=folder, share_staging=comm) as file:
        assert file.copy
        assert file.copy.wait(60)
        assert file.copy.path.read_bytes() == file.path.read_bytes()
        comm.Barrier()
        staged = {
            "wire_bytes": comm.gather(went_out() - before),
            "read_bytes": comm.gather(file.bytes_read),
        }
    if comm.rank == 0:
        print(json.dumps({"kept": kept, "staged": staged}))
    return 0


if __name__ == "__main__":
    run(main, "samples_on_hosts")
