"""Measure the carriers of gradients on GPUs, within a node and between nodes, and write a table.

Run it like a training: hvd-launch run -np 4 -- python -m hvd_ext.arena.cuda.measure -o
table.json. Set HVD_EXT_TABLE to the file, and hvd_ext uses it. Rows of other situations that the
file already holds stay in it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

from hvd_ext import variables
from hvd_ext.allreduce.carrier_names import NCCL
from hvd_ext.allreduce.report import report
from hvd_ext.allreduce.rows import merge
from hvd_ext.allreduce.table import BUILT_IN, Table, dump, load
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda import nccl
from hvd_ext.arena.cuda.carriers import candidates, measure
from hvd_ext.arena.cuda.ipc import or_window_error
from hvd_ext.cli import add_version, at_least, output_file, progress, run, size_bytes
from hvd_ext.errors import UsageError
from hvd_ext.job.topology import discover
from hvd_ext.shm.regions import on_every_rank
from hvd_ext.system.files import write_text
from hvd_ext.system.process import allow_singleton_mpi

_NON_BLOCKING = 1  # cudaStreamNonBlocking


def main(arguments: Sequence[str]) -> int:
    """Measure on all ranks; rank 0 writes and prints."""
    allow_singleton_mpi()  # for --help, which needs no launcher
    options = parser().parse_args(arguments)
    from mpi4py import MPI

    world, timeout_s = MPI.COMM_WORLD, variables.STALL_TIMEOUT_S.read()
    topology = discover(world, timeout_s)
    if not topology.homogeneous or world.size == 1:
        raise UsageError(
            f"{world.size} ranks on {topology.nodes} nodes: carriers are measured by 2 or more "
            "ranks, as many on every node"
        )
    path: Path = options.output
    old = world.bcast(load(path).rows if world.rank == 0 and path.exists() else ())
    device, stream = on_every_rank(topology, lambda: device_of(topology.node.rank))
    sizes = [1 << p for p in range(options.most.bit_length()) if options.least <= 1 << p]
    if not sizes:
        raise UsageError("no power of two lies between --least and --most")
    names = candidates(topology, device, timeout_s, options.mpi)
    with progress("measuring", len(sizes), shown=world.rank == 0) as advance:
        count = itertools.count(1)
        row = measure(
            ArenaConfig(topology, BUILT_IN, timeout_s),
            *(device, lambda: stream, names, sizes, options.rounds),
            done=lambda what: advance(next(count), what),
        )
    if world.rank == 0:
        write_text(path, dump(Table(merge([row], old), str(path))))
        report([row])
        if reason := nccl.refusal(topology, device):
            print(f"{NCCL} was not measured: {reason}")
        print(f"wrote {path}: use it with HVD_EXT_TABLE={path}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m hvd_ext.arena.cuda.measure",
        description=(
            "Time the carriers of gradients on GPUs, and write the table that names the fastest."
        ),
        epilog="example: hvd-launch run -np 4 -- python -m hvd_ext.arena.cuda.measure -o "
        "table.json",
    )
    add_version(top)
    top.add_argument(
        "-o", "--output", type=output_file, required=True, metavar="TABLE", help="file to write"
    )
    top.add_argument(
        "--least", type=size_bytes, default=4 << 10, metavar="SIZE", help="shortest (4 KiB)"
    )
    top.add_argument(
        "--most", type=size_bytes, default=64 << 20, metavar="SIZE", help="longest (64 MiB)"
    )
    top.add_argument("--rounds", type=at_least(2), default=15, help="samples of each (15)")
    top.add_argument(
        "--mpi",
        action="store_true",
        help="between nodes, also give device memory to MPI, which may crash",
    )
    return top


def device_of(local_rank: int) -> tuple[int, int]:
    """This rank's GPU, and a stream there.

    Raises:
        WindowError: there is none.
    """
    with or_window_error("a GPU to measure on"):
        import cupy

        device = local_rank % cupy.cuda.runtime.getDeviceCount()
        with cupy.cuda.Device(device):
            # The stream lives as long as the process.
            return device, cupy.cuda.runtime.streamCreateWithFlags(_NON_BLOCKING)


if __name__ == "__main__":
    run(main, "hvd_ext.arena.cuda.measure")
