"""Measure every algorithm on this cluster, and write the table that names the best.

Run it like a training, on the same number of nodes and ranks: hvd-launch run -np 4 --
python -m hvd_ext.allreduce.measure -o table.json. Set HVD_EXT_TABLE to the file, and hvd_ext uses
it. Rows of other situations that the file already holds stay in it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hvd_ext.allreduce.algorithms import ALGORITHMS, SHARED_MEMORY
from hvd_ext.allreduce.operations import OPERATIONS, Array
from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.allreduce.report import report
from hvd_ext.allreduce.rows import make_row, merge
from hvd_ext.allreduce.table import Table, dump, load
from hvd_ext.allreduce.timing import Call, check, interleave, repeats_for
from hvd_ext.cli import add_version, at_least, output_file, progress, run, size_bytes
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.events import tuning
from hvd_ext.job.topology import Topology, discover
from hvd_ext.system.files import write_text
from hvd_ext.system.process import allow_singleton_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

# The dtype that is measured for each class.
_DTYPES = {"float": np.float32, "half": np.float16, "integer": np.int32}
_SAMPLE_S = 0.001
_MOST_CALLS = 100
_TIMEOUT_S = 60.0


def main(arguments: Sequence[str]) -> int:
    """Measure on all ranks; rank 0 writes and prints."""
    allow_singleton_mpi()  # for --help, which needs no launcher
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    options = _together(world, lambda: _parse(arguments))
    path: Path = options.output
    old = _together(world, lambda: load(path).rows if path.exists() else ())
    topology = discover(world, _TIMEOUT_S)
    if not topology.homogeneous:
        raise UsageError("nodes have different numbers of ranks: start as many on each")
    ranks = topology.node.size
    situations = [(topology.nodes, ranks, "host", topology.world)]
    if topology.nodes == 1:
        situations.append((1, ranks, "arena", topology.world))
    elif ranks > 1:
        # Shards of the arena travel like this: all local ranks exchange between the nodes at once.
        situations.append((topology.nodes, 1, "host", topology.cross))
    sizes = [1 << p for p in range(options.most.bit_length()) if options.least <= 1 << p]
    steps = len(situations) * len(_DTYPES) * len(sizes)
    rows = []
    with progress("measuring", steps, shown=world.rank == 0) as advance:
        done = itertools.count(1)
        for nodes, ranks_per_node, memory, comm in situations:
            for dtype_class, dtype in _DTYPES.items():
                samples: dict[int, dict[str, list[float]]] = {}
                for size in sizes:
                    calls, buffer = _contenders(topology, comm, memory, size, np.dtype(dtype))
                    times_s = _time_all(world, comm, calls, buffer, options.rounds)
                    samples[buffer.nbytes] = times_s
                    situation = f"{nodes} x {ranks_per_node} {memory} {dtype_class}"
                    advance(next(done), f"{situation} {size} B")
                rows.append(make_row(nodes, ranks_per_node, memory, dtype_class, samples))
    if world.rank == 0:
        table = Table(merge(rows, old), str(path))
        write_text(path, dump(table))
        report(rows)
        print(f"wrote {path}: use it with HVD_EXT_TABLE={path}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m hvd_ext.allreduce.measure",
        description="Time every allreduce algorithm, and write the table that names the best.",
        epilog="example: hvd-launch run -np 4 -- python -m hvd_ext.allreduce.measure -o table.json",
    )
    add_version(top)
    top.add_argument(
        "-o", "--output", type=output_file, required=True, metavar="TABLE", help="file to write"
    )
    top.add_argument(
        "--least", type=size_bytes, default=4, metavar="SIZE", help="shortest message (4 B)"
    )
    top.add_argument(
        "--most", type=size_bytes, default=64 << 20, metavar="SIZE", help="longest (64 MiB)"
    )
    top.add_argument("--rounds", type=at_least(2), default=15, help="samples of each (15)")
    return top


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    options = parser().parse_args(arguments)
    if not 4 <= options.least <= options.most:
        raise UsageError(
            f"--least {options.least} is more than --most {options.most}, or less than 4 bytes"
        )
    return options


def _together(world: MPI.Comm, read: Callable[[], T]) -> T:
    """The table that rank 0 reads, on all ranks; its error is printed once and ends all ranks."""
    found: T | None = None
    error: HvdExtError | SystemExit | None = None
    if world.rank == 0:
        try:
            found = read()
        except (HvdExtError, SystemExit) as raised:
            error = raised
    found, code = world.bcast((found, getattr(error, "exit_code", getattr(error, "code", None))))
    if error is not None:
        raise error
    if code is not None:
        sys.exit(code)
    result: T = found
    return result


def _contenders(
    topology: Topology, comm: MPI.Comm, memory: str, size: int, dtype: np.dtype[Any]
) -> tuple[dict[str, Call], Array]:
    """A buffer of `size` bytes, and a call of each algorithm that can reduce it."""
    calls: dict[str, Call] = {}
    count = max(1, size // dtype.itemsize)
    if memory == "arena":
        planned = PersistentAllreduce.in_arena(topology, count, dtype.name, algorithm=SHARED_MEMORY)
        calls[SHARED_MEMORY], buffer = planned, planned.buffer
    else:
        buffer = np.zeros(count, dtype)
        if topology.nodes == 1:
            calls[SHARED_MEMORY] = PersistentAllreduce(topology, buffer, algorithm=SHARED_MEMORY)
    for name in ALGORITHMS:
        calls[name] = prepare(name, comm, buffer, OPERATIONS["sum"])
    return calls, buffer


def _time_all(
    world: MPI.Comm, comm: MPI.Comm, calls: Mapping[str, Call], buffer: Array, rounds: int
) -> dict[str, list[float]]:
    """Time all algorithms on `buffer`, interleaved; the same results on every rank."""
    repeats: dict[str, int] = {}
    with tuning():
        for name, call in calls.items():
            check(world, comm, name, buffer, call)
            repeats[name], _ = repeats_for(world, call, _SAMPLE_S, _MOST_CALLS)
        return interleave(world, calls, repeats, rounds)


if __name__ == "__main__":
    run(main, "hvd_ext.allreduce.measure")
