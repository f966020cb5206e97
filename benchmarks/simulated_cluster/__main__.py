"""How wrong is the simulated cluster, and how do hvd_ext's algorithms scale on it?

Validation: hvd_ext's algorithms are timed on emulated hosts (testbed/emulated_hosts.py), a rank
each. The simulator is calibrated with the times of few hosts, and predicts the times of more.

Growth: the time of a short message by the number of ranks. Selectors: hvd_ext's fastest algorithm
against the choices of Open MPI, MPICH, MVAPICH2 and Intel MPI, in the same simulator. Steps: a
recorded training step on 1 to 512 simulated nodes, as hvd_ext exchanges and as Horovod does.

Simulated times are kept in --folder, so a second run continues where the first one ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.simulated_cluster import figures, scaling, steps, validation
from hvd_ext.cli import above_zero, at_least
from hvd_ext.system.files import make_folder
from hvd_ext.system.mpi_libraries import LIBRARIES
from hvd_launch.simulate import platform
from hvd_launch.simulate.replay import check_installed

_SELECTORS = sorted({one.simulated_as for one in LIBRARIES.values()} - {""})
_PARTS = ("validation", "growth", "selectors", "steps")


def main(arguments: Sequence[str]) -> int:
    """Validate, simulate, print, and draw; or be a rank."""
    parser = harness.parser("simulated_cluster", __doc__, "--json F", rounds=5)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="(all)")
    parser.add_argument("--gbit", type=above_zero, default=0.01, help="of an emulated link (0.01)")
    parser.add_argument(
        "--calibrated-on", type=at_least(2), nargs="+", default=[2, 4], help="hosts (2 4)"
    )
    parser.add_argument("--predicted", type=at_least(2), default=8, help="hosts (8)")
    parser.add_argument("--sizes", type=at_least(2), default=16, help="4 KiB to 1 MiB (16)")
    parser.add_argument("--most-bytes", type=at_least(8192), default=1 << 20, help="(1 MiB)")
    parser.add_argument(
        "--measured", type=Path, metavar="F", help="JSON of an earlier run, whose times are taken"
    )
    parser.add_argument("--hosts", type=at_least(2), nargs="+", default=[4, 16, 64, 512, 4096])
    parser.add_argument(
        "--libraries",
        nargs="+",
        choices=_SELECTORS,
        default=_SELECTORS,
        help="to compare with (all)",
    )
    parser.add_argument("--platform", type=Path, help="of the other parts (a star of 100 Gbit/s)")
    parser.add_argument("--folder", type=Path, default=Path("runs/simulated_cluster"))
    parser.add_argument("--message-bytes", default="", help="of a rank: its sizes")
    options = parser.parse_args(arguments)
    if options.worker:
        validation.work(list(map(int, options.message_bytes.split(","))), options.rounds)
        return 0
    check_installed()
    make_folder(options.folder)
    cluster = platform.load(options.platform) if options.platform else platform.Platform()
    result: dict[str, Any] = {"platform": cluster.describe()}
    if "validation" in options.parts:
        result |= validation.validate(options)
    simulator = scaling.Simulator(cluster, options.folder / "simulated.jsonl")
    if "growth" in options.parts:
        result |= scaling.growth(simulator, options.hosts)
    if "selectors" in options.parts:
        # SMPI's own allreduce combines at no cost, so hvd_ext's does so here too.
        alike = dataclasses.replace(cluster, combine_ns=0.0)
        peers = scaling.Simulator(alike, options.folder / "simulated.jsonl")
        result |= scaling.selectors(peers, options.hosts, options.libraries)
    if "steps" in options.parts:
        result |= steps.steps(simulator, options.folder, options.hosts)
    figures.show(result)
    figures.draw(result, options.folder)
    if options.json:
        harness.write_result(options.json, result)
    return 0


if __name__ == "__main__":
    harness.run(main, "simulated_cluster")
