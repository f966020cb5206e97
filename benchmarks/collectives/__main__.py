"""How fast are the collectives, compared with Gloo and with the MPI library?

Two levels: "torch", tensors through torch.distributed, with the backend hvd_ext and with Gloo; and
"engine", numpy's arrays, by hvd_ext's engine, by the MPI library's own collective, and by UCC
(built with UCX, outside of the checkout) where --ucc names its folder. Layouts are nodes x ranks
of each: one node, and emulated hosts with links of --gbit. Every result is checked
before it is timed; contenders are interleaved; a time is that of the slowest rank.

message_bytes of an all_gather is what each rank gives, else the whole on one rank.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.collectives.calls import COLLECTIVES
from benchmarks.collectives.worker import work
from benchmarks.harness import BenchmarkError
from benchmarks.peers import contenders
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
    parser.add_argument("--ucc", type=Path, metavar="PREFIX", help="where UCC is installed")
    options = parser.parse_args(arguments)
    layouts = options.layout or list(_LAYOUTS)
    collectives = options.collective or list(COLLECTIVES)
    if options.worker:
        work(layouts[0], collectives, options.sizes, options.rounds, options.ucc)
        return 0
    if options.ucc and not contenders.has_ucc(options.ucc):
        raise BenchmarkError(f"--ucc {options.ucc}: no UCC is installed there: build it with UCX")
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
    start = ranks.hvd_launch(ranks_per_node)
    variables: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        if options.ucc:
            library = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ucc.so"
            mpicc = Path(sys.executable).with_name("mpicc")
            source = str(Path(__file__).with_name("ucc.c"))
            words.append(f"--ucc={library}")  # a rank loads what was compiled
            shared = [str(mpicc), "-O2", "-shared", "-fPIC", source, "-o", str(library)]
            contenders.run([*shared, *contenders.with_ucc(options.ucc)], "ucc")
            # Its layers by node where there are several, and the ways that these ranks have.
            layers, ways = ("basic", "shm") if nodes == 1 else ("hier,basic", "shm,tcp")
            variables |= {"UCC_CLS": layers, "UCX_TLS": f"{ways},self"}
        if nodes > 1:
            hosts = stack.enter_context(emulated_hosts(nodes, options.gbit))
            start = hosts.mpirun(ranks_per_node)
            variables |= hosts.environment()
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
