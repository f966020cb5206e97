"""How fast are the collectives, compared with Gloo and with the MPI library?

Two levels: "torch", tensors through torch.distributed, with the backend hvd_ext and with Gloo; and
"engine", numpy's arrays, by hvd_ext's engine and by the MPI library's own collective. Layouts are
nodes x ranks of each: one node, and emulated hosts with links of --gbit. Every result is checked
before it is timed; contenders are interleaved; a time is that of the slowest rank.

message_bytes of an all_gather is what each rank gives, else the whole on one rank.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from typing import Any

from benchmarks import harness
from benchmarks.collectives.calls import COLLECTIVES
from benchmarks.collectives.worker import work
from hvd_ext.cli import above_zero
from hvd_ext.units import format_bytes
from testbed import ranks
from testbed.emulated_hosts import emulated_hosts

_LAYOUTS = ("1x2", "2x2", "4x1")
_SIZES = [4 << shift for shift in range(0, 25, 2)]


def main(arguments: Sequence[str]) -> int:
    """Launch the layouts' ranks one after the other, or be a rank."""
    parser = harness.parser("collectives", __doc__, "--layout 2x2 --json F", rounds=5)
    parser.add_argument(
        *("--layout", "-l"), action="append", choices=_LAYOUTS, help="nodes x ranks (all)"
    )
    parser.add_argument(
        *("--collective", "-c"), action="append", choices=COLLECTIVES, help="repeatable (all)"
    )
    parser.add_argument("--sizes", type=_sizes, default=_SIZES, help="bytes, by commas (4 to 64M)")
    parser.add_argument("--gbit", type=above_zero, default=1.0, help="Gbit/s of a host's link (1)")
    options = parser.parse_args(arguments)
    layouts = options.layout or list(_LAYOUTS)
    collectives = options.collective or list(COLLECTIVES)
    if options.worker:
        work(layouts[0], collectives, options.sizes, options.rounds)
        return 0
    result: dict[str, Any] = {"gbit": options.gbit, "cases": []}
    for layout in layouts:
        measured = _launch(layout, collectives, options)
        result["cases"] += measured["cases"]
        result["mpi"] = measured["mpi"]
        _print(layout, measured["cases"])
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def _launch(layout: str, collectives: Sequence[str], options: argparse.Namespace) -> Any:
    nodes, ranks_per_node = map(int, layout.split("x"))
    words = [f"--layout={layout}", f"--rounds={options.rounds}"]
    words += [f"--collective={name}" for name in collectives]
    words.append(f"--sizes={','.join(map(str, options.sizes))}")
    start, variables = ranks.hvd_launch(ranks_per_node), {}
    with contextlib.ExitStack() as stack:
        if nodes > 1:
            hosts = stack.enter_context(emulated_hosts(nodes, options.gbit))
            start, variables = hosts.mpirun(ranks_per_node), hosts.environment()
        return ranks.launch(
            "benchmarks.collectives",
            nodes * ranks_per_node,
            words,
            timeout_s=3600,
            start=start,
            variables=variables,
        )


def _print(layout: str, cases: Sequence[dict[str, Any]]) -> None:
    rows: list[tuple[str, ...]] = []
    for case in cases:
        ours, theirs = case["time_us"]["hvd_ext"], case["time_us"][case["best_peer"]]
        size = format_bytes(case["message_bytes"]) if case["message_bytes"] else ""
        rows.append(
            (
                *(case["level"], case["collective"], size),
                *harness.times(ours, 0),
                f"{case['best_peer']} {theirs['median']:.0f}",
                f"{case['ratio_vs_best_peer']:.2f}",
            )
        )
    columns = ("level", "collective", "message", "us", "middle half", "best peer", "ratio")
    harness.print_table(f"{layout} ranks", columns, rows, left=2)


if __name__ == "__main__":
    harness.run(main, "collectives")
