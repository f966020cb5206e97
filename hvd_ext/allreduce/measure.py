"""Measure every algorithm on this cluster, and write the table that names the best.

Run it as you run a training, on as many nodes and ranks: horovodrun -np 4 python -m
hvd_ext.allreduce.measure -o table.json. Set HVD_EXT_TABLE to the file, and hvd_ext uses
it. Rows of other situations that the file holds already stay in it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hvd_ext.allreduce.algorithms import ALGORITHMS, SHARED_MEMORY
from hvd_ext.allreduce.cost import FORMULAS, Measurement, fit, leave_one_out
from hvd_ext.allreduce.operations import OPERATIONS, Array
from hvd_ext.allreduce.persistent import PersistentAllreduce
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.allreduce.table import Choices, Row, Table, dump, load
from hvd_ext.cli import run
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.job.topology import Topology, discover
from hvd_ext.units import format_bytes, format_seconds, parse_bytes

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

# Which dtype speaks for its class.
_DTYPES = {"float": np.float32, "half": np.float16, "integer": np.int32}
_BASELINE = "native"
# Short calls are timed several at a time, so that the clock and the ranks' different
# starts do not count.
_SAMPLE_S = 0.001
_MOST_CALLS = 100
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and middle half of the samples of one algorithm at one size, in s."""

    low: float
    median: float
    high: float


Timings = dict[int, dict[str, Spread]]  # by message_bytes, then by algorithm


def faster(spreads: Mapping[str, Spread]) -> set[str]:
    """The algorithms that beat native beyond the spread."""
    limit = spreads[_BASELINE].low
    return {name for name, spread in spreads.items() if spread.high < limit}


def choices(timings: Timings) -> Choices:
    """Least sizes and algorithms: what a size takes holds up to the next measured size.

    A size takes the fastest of those that beat native there and at a neighbouring size:
    what wins at one size alone has had luck.
    """
    sizes = sorted(timings)
    winners = [faster(timings[size]) for size in sizes]
    found: list[tuple[int, str]] = []
    for index, message_bytes in enumerate(sizes):
        beside = winners[max(0, index - 1) : index] + winners[index + 1 : index + 2]
        lasting = winners[index].intersection(set().union(*beside))
        medians = {name: timings[message_bytes][name].median for name in sorted(lasting)}
        name = min(medians, key=medians.__getitem__, default=_BASELINE)
        if not found or name != found[-1][1]:
            found.append((message_bytes if found else 0, name))
    return tuple(found)


def make_row(
    nodes: int, ranks_per_node: int, memory: str, dtype_class: str, timings: Timings
) -> Row:
    """The row of one situation, with the medians that it rests on."""
    measured = tuple(
        (size, {name: spread.median * 1e6 for name, spread in timings[size].items()})
        for size in sorted(timings)
    )
    return Row(nodes, ranks_per_node, memory, choices(timings), dtype_class, measured)


def merge(new: Sequence[Row], old: Sequence[Row]) -> tuple[Row, ...]:
    """New rows first; old ones stay where no new one is for the same situation."""
    taken = {(row.nodes, row.ranks_per_node, row.memory) for row in new}
    kept = [row for row in old if (row.nodes, row.ranks_per_node, row.memory) not in taken]
    return (*new, *kept)


def main(arguments: Sequence[str]) -> int:
    """Measure on all ranks, and have rank 0 write and print."""
    # For --help, which needs no launcher: see hvd_ext/torch/background.py.
    os.environ.setdefault("OMPI_MCA_ess_singleton_isolated", "1")
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    options = _together(world, lambda: _parse(arguments))
    path: Path = options.output
    old = _together(world, lambda: _rows_in(path))
    topology = discover(world, _TIMEOUT_S)
    if not topology.homogeneous:
        raise UsageError("nodes have different numbers of ranks: a row needs as many on each")
    ranks = topology.node.size
    situations = [(topology.nodes, ranks, "host", topology.world)]
    if topology.nodes == 1:
        situations.append((1, ranks, "arena", topology.world))
    elif ranks > 1:
        # How shares of the arena travel: all local ranks between the nodes at once.
        situations.append((topology.nodes, 1, "host", topology.cross))
    sizes = _powers_of_two(options.least, options.most)
    rows = []
    with _Progress(world.rank, len(situations) * len(_DTYPES) * len(sizes)) as advance:
        for nodes, ranks_per_node, memory, comm in situations:
            for dtype_class, dtype in _DTYPES.items():
                timings: Timings = {}
                for size in sizes:
                    calls, buffer = _contenders(topology, comm, memory, size, np.dtype(dtype))
                    timings[buffer.nbytes] = _time_all(world, comm, calls, buffer, options.rounds)
                    advance(f"{nodes} x {ranks_per_node} {memory} {dtype_class} {size} B")
                rows.append(make_row(nodes, ranks_per_node, memory, dtype_class, timings))
    if world.rank == 0:
        table = Table(merge(rows, old), str(path))
        # Appears whole or not at all.
        draft = path.with_name(path.name + ".part")
        draft.write_text(dump(table), encoding="utf-8")
        draft.replace(path)
        _report(rows)
        print(f"wrote {path}: use it with HVD_EXT_TABLE={path}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m hvd_ext.allreduce.measure",
        description="Time every allreduce algorithm, and write the table that names the best.",
        epilog="example: horovodrun -np 4 python -m hvd_ext.allreduce.measure -o table.json",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="TABLE")
    parser.add_argument("--least", default="4", help="shortest message (4 B)")
    parser.add_argument("--most", default="64MiB", help="longest message (64 MiB)")
    parser.add_argument("--rounds", type=int, default=15, help="samples of each (15)")
    options = parser.parse_args(arguments)
    options.least, options.most = parse_bytes(options.least), parse_bytes(options.most)
    if not 4 <= options.least <= options.most:
        raise UsageError(
            f"--least {options.least} is more than --most {options.most}, or less than 4 bytes"
        )
    if options.rounds < 1:
        raise UsageError(f"--rounds {options.rounds}: give 1 or more")
    if not options.output.parent.is_dir():
        raise UsageError(f"--output {options.output}: {options.output.parent} is no folder")
    if not os.access(options.output.parent, os.W_OK):
        raise UsageError(f"--output {options.output}: {options.output.parent} cannot be written to")
    return options


def _together(world: MPI.Comm, read: Callable[[], T]) -> T:
    """What rank 0 reads, on all ranks; its error ends all of them, and is printed once."""
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


def _rows_in(path: Path) -> tuple[Row, ...]:
    return load(path).rows if path.exists() else ()


def _powers_of_two(least: int, most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if least <= 1 << power <= most]


def _contenders(
    topology: Topology, comm: MPI.Comm, memory: str, size: int, dtype: np.dtype[Any]
) -> tuple[dict[str, Callable[[], None]], Array]:
    """A buffer of `size` bytes, and a call of each algorithm that can reduce it."""
    calls: dict[str, Callable[[], None]] = {}
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
    world: MPI.Comm,
    comm: MPI.Comm,
    calls: Mapping[str, Callable[[], None]],
    buffer: Array,
    rounds: int,
) -> dict[str, Spread]:
    """Time all algorithms on `buffer`, in turns; the same figures on every rank."""
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        _check(world, comm, name, buffer, call)
        buffer.fill(0)
        _sample_s(world, call, 1)
        repeats[name] = min(_MOST_CALLS, 1 + int(_SAMPLE_S / _sample_s(world, call, 2)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(_sample_s(world, call, repeats[name]))
    return {
        name: Spread(*(float(q) for q in np.quantile(times, (0.25, 0.5, 0.75))))
        for name, times in samples.items()
    }


def _sample_s(world: MPI.Comm, call: Callable[[], None], repeats: int) -> float:
    """Time of one call, by the slowest rank."""
    from mpi4py import MPI

    world.Barrier()
    start_s = time.perf_counter()
    for _ in range(repeats):
        call()
    return float(world.allreduce((time.perf_counter() - start_s) / repeats, op=MPI.MAX))


def _check(
    world: MPI.Comm, comm: MPI.Comm, name: str, buffer: Array, call: Callable[[], None]
) -> None:
    """Small whole numbers, so that every order of summing is exact, in 16 bits too."""
    values = np.arange(len(buffer)) % 5
    buffer[:] = values + comm.rank % 3
    call()
    total = sum(rank % 3 for rank in range(comm.size))
    right = np.array_equal(buffer, (values * comm.size + total).astype(buffer.dtype))
    wrong = [rank for rank, good in enumerate(world.allgather(right)) if not good]
    if wrong:
        raise HvdExtError(
            f"{name} gave a wrong sum of {len(buffer)} {buffer.dtype} on ranks {wrong}: "
            "the table was not written; report it with your MPI library's version"
        )


class _Progress:
    """A bar on rank 0; calling it takes one step."""

    def __init__(self, rank: int, steps: int) -> None:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

        self._bar = Progress(
            *Progress.get_default_columns()[:2],
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=rank != 0,
        )
        self._task = self._bar.add_task("starting", total=steps)

    def __enter__(self) -> Callable[[str], None]:
        self._bar.start()
        return self._advance

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _advance(self, done: str) -> None:
        self._bar.update(self._task, advance=1, description=done)


def _report(rows: Sequence[Row]) -> None:
    """Print the crossovers, and how well the cost model fits."""
    from rich.console import Console
    from rich.table import Table as Shown

    console = Console()
    for row in rows:
        shown = Shown(title=row.describe(), title_justify="left")
        for name in ("from", "algorithm", "takes", "native takes"):
            shown.add_column(name, justify="left" if name == "algorithm" else "right")
        measured = dict(row.measured_us)
        for least, name in row.choices:
            times = measured.get(least, row.measured_us[0][1])
            figures = (format_seconds(times[n] / 1e6) for n in (name, _BASELINE))
            shown.add_row(format_bytes(least), name, *figures)
        console.print(shown)
        console.print(_fit_sentence(row), soft_wrap=True, highlight=False)


def _fit_sentence(row: Row) -> str:
    size = row.nodes * row.ranks_per_node
    points = [
        Measurement(name, size, message_bytes, us / 1e6)
        for message_bytes, times in row.measured_us
        for name, us in times.items()
        if name in FORMULAS
    ]
    if size == 1 or len(row.measured_us) < 2:
        return "no cost model: it takes two ranks and two sizes"
    rates = fit(points)
    by_name = {name: [p for p in points if p.algorithm == name] for name in FORMULAS}
    errors = [leave_one_out(of_one) for of_one in by_name.values()]
    return (
        f"cost model: latency {format_seconds(rates.latency_s)}, "
        f"{1e9 * rates.byte_s:.3g} ns a byte sent, "
        f"{1e9 * rates.reduction_s:.3g} ns a byte reduced; "
        f"median error {statistics.median(e.median for e in errors):.0%} "
        f"(worst {max(e.worst for e in errors):.0%}) if fitted to one algorithm, "
        f"{leave_one_out(points).median:.0%} to all"
    )


if __name__ == "__main__":
    run(main, "hvd_ext.allreduce.measure")
