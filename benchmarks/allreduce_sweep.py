"""Is hvd_ext's allreduce ever slower than the best peer, and by how much is it faster?

From 4 bytes to 256 MiB, by powers of two, float32 sums in place: hvd_ext's choice, in the
arena and in memory outside it, every algorithm of hvd_ext forced, the MPI library's own
allreduce, and Gloo (torch.distributed) where torch is installed. All take turns, and each
result is checked before it is timed. Planned calls are called as a training loop would;
the MPI library's own call is mpi4py's.

Another MPI library has its own Python: --python .venvs/mpich5/bin/python.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import gloo
from hvd_ext.cli import at_least, output_file, size_bytes
from hvd_ext.errors import UsageError
from hvd_ext.units import format_bytes, format_seconds
from testbed import ranks, timing

_PEERS = ("mpi", "gloo")
_LONG_FROM = 16 << 10
# A sample of a short message is many calls, so that neither the clock nor the ranks'
# different starts count; one of a long message is one.
_SAMPLE_S, _MOST_CALLS = 0.002, 400
_ROUNDS, _LEAST_ROUNDS, _SIZE_S = 25, 5, 5.0

Call = Callable[[], object]


def main(arguments: Sequence[str]) -> int:
    """Launch the ranks, or be one."""
    parser = harness.parser("allreduce_sweep", __doc__, "--np 2 --json F")
    parser.add_argument("--np", type=at_least(1), default=2, help="ranks (2)")
    parser.add_argument(
        "--least", type=size_bytes, default="4", metavar="BYTES", help="shortest message (4)"
    )
    parser.add_argument(
        "--most", type=size_bytes, default="256MiB", metavar="BYTES", help="longest (256MiB)"
    )
    parser.add_argument("--python", default=sys.executable, metavar="PY", help="whose MPI (ours)")
    parser.add_argument("--plot", type=output_file, metavar="PNG", help="draw time over size there")
    options = parser.parse_args(arguments)
    least, most = options.least, options.most
    if not 4 <= least <= most:
        raise UsageError(f"--least {least} --most {most}: give 4 <= least <= most")
    if options.worker:
        _work(least, most)
        return 0
    # Not resolved: an environment's python is a link, and what lies next to it counts.
    python = str(Path(options.python).absolute())
    result = ranks.launch(
        "benchmarks.allreduce_sweep",
        options.np,
        ["--least", str(least), "--most", str(most)],
        timeout_s=3600,
        start=ranks.hvd_launch(options.np, python),
        # The library at its fastest: nothing else needs the cores here.
        variables={"OMPI_MCA_mpi_yield_when_idle": "0", "I_MPI_THREAD_YIELD": "0"},
        python=python,
    )
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    if options.plot:
        _plot(result, options.plot)
    return 0


def _print(result: dict[str, Any]) -> None:
    rows = []
    for row in result["sizes"]:
        times = {name: format_seconds(t["median"] / 1e6) for name, t in row["time_us"].items()}
        rows.append(
            (
                format_bytes(row["message_bytes"]),
                times["mpi"],
                times.get("gloo", "-"),
                f"{times['arena']} {row['arena_algorithm']}",
                f"{row['ratio_vs_best_peer']:.2f} x",
                f"{times['outside']} {row['outside_algorithm']}",
                f"{row['ratio_vs_best_peer_outside_arena']:.2f} x",
            )
        )
    console = harness.print_table(
        f"allreduce of float32, {result['size']} ranks, {result['mpi']}",
        ("message", "mpi", "gloo", "arena", "", "outside", ""),
        rows,
        left=0,
    )
    console.print(
        f"against the best peer: in the arena at least {result['least_ratio']:.2f} x, "
        f"{result['geometric_mean_from_16_kib']:.2f} x on average from 16 KiB up; "
        f"outside it at least {result['least_ratio_outside_arena']:.2f} x",
        soft_wrap=True,
    )


def _plot(result: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    # One more line than matplotlib's ten colors: two would look alike.
    axes.set_prop_cycle(color=mpl.colormaps["tab20"](range(20)))
    names = dict.fromkeys(name for row in result["sizes"] for name in row["time_us"])
    bold = {
        "mpi": "the MPI library",
        "gloo": "Gloo",
        "arena": "hvd_ext in the arena",
        "outside": "hvd_ext outside it",
    }
    for name in names:
        points = [
            (row["message_bytes"], row["time_us"][name]["median"])
            for row in result["sizes"]
            if name in row["time_us"]
        ]
        style: dict[str, Any] = {"lw": 2.2} if name in bold else {"lw": 1, "ls": "--"}
        axes.loglog(*zip(*points, strict=True), base=10, label=bold.get(name, name), **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks := [4**k for k in range(1, 15)], [format_bytes(t) for t in ticks])
    axes.tick_params(axis="x", rotation=45)
    axes.set_xlabel("message per rank")
    axes.set_ylabel("time of one allreduce, us")
    axes.set_title(f"{result['size']} ranks on one node, {result['mpi']}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def _work(least: int, most: int) -> None:
    from mpi4py import MPI

    from hvd_ext.job.topology import discover
    from hvd_launch.backends.libraries import version_line

    world = MPI.COMM_WORLD
    topology = discover(world, 60.0)
    gloo = _gloo(world)
    sizes = []
    for power in range(most.bit_length()):
        if least <= 1 << power <= most:
            sizes.append(_measure(topology, gloo, 1 << power))
    if world.rank == 0:
        ratios = [row["ratio_vs_best_peer"] for row in sizes]
        long = [r["ratio_vs_best_peer"] for r in sizes if r["message_bytes"] >= _LONG_FROM]
        ranks.report(
            {
                "size": world.size,
                "mpi": version_line(MPI.Get_library_version()),
                "sizes": sizes,
                "least_ratio": min(ratios),
                "geometric_mean_from_16_kib": math.exp(statistics.mean(map(math.log, long or [1]))),
                "least_ratio_outside_arena": min(
                    row["ratio_vs_best_peer_outside_arena"] for row in sizes
                ),
            }
        )


def _measure(topology: Any, gloo: Any, message_bytes: int) -> dict[str, Any]:
    from mpi4py import MPI

    from hvd_ext.allreduce.algorithms import ALGORITHMS
    from hvd_ext.allreduce.operations import OPERATIONS
    from hvd_ext.allreduce.persistent import PersistentAllreduce
    from hvd_ext.allreduce.prepare import prepare
    from hvd_ext.allreduce.timing import check, interleave, repeats_for

    world = topology.world
    count = message_bytes // 4
    arena = PersistentAllreduce.in_arena(topology, count, "float32")
    # One for all that work outside the arena: what is in the cache is so for each alike.
    plain = np.zeros(count, np.float32)
    outside = PersistentAllreduce(topology, plain)
    calls: dict[str, tuple[Any, Call]] = {
        "mpi": (plain, lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, plain)),
        "arena": (arena.buffer, arena),
        "outside": (plain, outside),
    }
    if gloo is not None:
        tensor = gloo.from_numpy(plain)
        calls["gloo"] = (plain, lambda: gloo.distributed.all_reduce(tensor))
    for name in ALGORITHMS:
        calls[name] = (plain, prepare(name, world, plain, OPERATIONS["sum"]))
    repeats = {}
    total_s = 0.0
    for name, (buffer, call) in calls.items():
        check(world, world, name, buffer, call)
        repeats[name], once_s = repeats_for(world, call, _SAMPLE_S, _MOST_CALLS)
        total_s += once_s * repeats[name]
    rounds = max(_LEAST_ROUNDS, min(_ROUNDS, int(_SIZE_S / total_s)))
    timed = {name: call for name, (_, call) in calls.items()}
    samples = interleave(world, timed, repeats, rounds)
    best_s = min(statistics.median(samples[name]) for name in _PEERS if name in samples)
    return {
        "message_bytes": message_bytes,
        "arena_algorithm": arena.algorithm,
        "outside_algorithm": outside.algorithm,
        "ratio_vs_best_peer": best_s / statistics.median(samples["arena"]),
        "ratio_vs_best_peer_outside_arena": best_s / statistics.median(samples["outside"]),
        "time_us": {
            name: timing.summary([1e6 * t for t in times]) for name, times in samples.items()
        },
    }


def _gloo(world: Any) -> Any:
    """The torch module with its Gloo group over all ranks, or None without torch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    gloo.start(world)
    return torch


if __name__ == "__main__":
    harness.run(main, "allreduce_sweep")
