"""Does `hvprof project` foretell 8 hosts from 1, 2 and 4?

Emulated hosts (testbed/emulated_hosts.py) of one rank each train with Horovod, all recorded by
hvprof, the sizes interleaved. Compute is a timed sleep: the hosts share this machine's cores, and
a real one would measure their scheduler. The links are slow, so that emulating them is cheap. The
prediction for 8 hosts from 1, 2 and 4 is compared with the recordings of 8, by the median of
the steps over the rounds. With --jitter-ms compute scatters by that standard deviation, and what
2 and 4 hosts say of the waiting for the last of 8 is held against it too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import hvprof
from benchmarks import harness
from hvd_ext.cli import above_zero, at_least, not_negative
from hvprof.analysis.limits.waiting import jitter_of
from hvprof.analysis.projection.points import Point, recorded_point
from hvprof.analysis.projection.projection import project
from hvprof.recording.session import begin, end, variables
from testbed import ranks
from testbed.emulated_hosts import Hosts, emulated_hosts

MEASURED, FORETOLD = (1, 2, 4), 8
Recorded = dict[int, list[hvprof.Recording]]
_MODULE = "benchmarks.emulated_forecast"


def main(arguments: Sequence[str]) -> int:
    """Record all sizes, and hold the projection against the largest; or be a rank."""
    parser = harness.parser("emulated_forecast", __doc__, "--gbit 0.2 --json F", rounds=5)
    parser.add_argument("--gbit", type=above_zero, default=0.2, help="Gbit/s of a link (0.2)")
    parser.add_argument("--compute-ms", type=above_zero, default=100.0, help="of a step (100)")
    parser.add_argument("--gradient-mb", type=above_zero, default=1.0, help="of a step (1)")
    parser.add_argument("--jitter-ms", type=not_negative, default=0.0, help="of compute (0)")
    parser.add_argument("--steps", type=at_least(10), default=40, help="of a job (40)")
    options = parser.parse_args(arguments)
    if options.worker:
        _work(options)
        return 0
    recorded = _measure(options)
    result = _foretell(recorded)
    if options.jitter_ms:
        result["waiting_s"] = _waiting(recorded)
    _print(result)
    if options.json:
        words = ("gbit", "compute_ms", "gradient_mb", "jitter_ms", "steps", "rounds")
        harness.write_result(
            options.json, {**result, **{name: getattr(options, name) for name in words}}
        )
    return 0


def _measure(options: argparse.Namespace) -> Recorded:
    """A recording of each size in each round."""
    recorded: Recorded = {size: [] for size in (*MEASURED, FORETOLD)}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for size, of_size in recorded.items():
                directory = Path(folder) / f"{size}_{number}"
                with emulated_hosts(size, options.gbit) as hosts:
                    _record(directory, hosts, options)
                of_size.append(hvprof.load(directory))
                time_ms = 1e3 * _step_s(_point(of_size[-1]))
                Console(stderr=True).print(
                    f"round {number + 1} of {options.rounds}, {size} hosts: {time_ms:.1f} ms",
                    style="dim",
                )
    return recorded


def _record(directory: Path, hosts: Hosts, options: argparse.Namespace) -> None:
    begin(directory, [_MODULE], force=False)
    words = [f"--compute-ms={options.compute_ms}", f"--gradient-mb={options.gradient_mb}"]
    words += [f"--jitter-ms={options.jitter_ms}"]
    ranks.launch(
        _MODULE,
        len(hosts.names),
        [*words, f"--steps={options.steps}"],
        start=hosts.mpirun(1),
        variables={**hosts.environment(), **variables(directory, 0)},
    )
    end(directory, 0)


def _foretell(recorded: Recorded) -> dict[str, Any]:
    points = {size: list(map(_point, of)) for size, of in recorded.items()}
    known = [point for size in MEASURED for point in points[size]]
    found = project(known, to=FORETOLD)
    last = found.projection[-1]
    predicted_s = FORETOLD / last.throughput
    measured_s = statistics.median(map(_step_s, points[FORETOLD]))
    return {
        "step_time_s": {size: statistics.median(map(_step_s, of)) for size, of in points.items()},
        "doubling": found.doubling,
        "predicted_step_time_s": predicted_s,
        "interval_s": [FORETOLD / last.high, FORETOLD / last.low],
        "naive_step_time_s": FORETOLD / last.naive,
        "measured_step_time_s": measured_s,
        "predicted_over_measured": predicted_s / measured_s,
    }


def _waiting(recorded: Recorded) -> dict[str, float]:
    """Waiting for the last of 8 hosts: predicted from 2 and 4, and measured; medians."""
    told = {
        f"foretold_from_{size}": [jitter_of(one).waiting_s(FORETOLD) for one in recorded[size]]
        for size in MEASURED[1:]
    }
    told["measured"] = list(map(_waited_s, recorded[FORETOLD]))
    return {name: statistics.median(values) for name, values in told.items()}


def _waited_s(recording: hvprof.Recording) -> float:
    """How long a rank waited for the last one, a mean over ranks and steps."""
    busy = [[step.time_s - step.exposed_s for step in rank.steps] for rank in recording.ranks]
    return statistics.fmean(max(step) - statistics.fmean(step) for step in zip(*busy, strict=True))


def _print(result: dict[str, Any]) -> None:
    rows = [(str(size), f"{1e3 * time_s:.1f}") for size, time_s in result["step_time_s"].items()]
    columns = ("hosts", "median ms")
    console = harness.print_table("A step by number of hosts", columns, rows, left=0)
    low, high = (1e3 * time_s for time_s in result["interval_s"])
    console.print(
        f"predicted for {FORETOLD}: {1e3 * result['predicted_step_time_s']:.1f} ms ({low:.1f} to "
        f"{high:.1f}), "
        f"{result['predicted_over_measured']:.3f} of what was measured; naive: "
        f"{1e3 * result['naive_step_time_s']:.1f} ms",
        soft_wrap=True,
    )
    for name, time_s in result.get("waiting_s", {}).items():
        console.print(f"waiting for the last of {FORETOLD}, {name}: {1e3 * time_s:.2f} ms")


def _point(recording: hvprof.Recording) -> Point:
    return recorded_point(recording, strong=False)


def _step_s(point: Point) -> float:
    return point.ranks / point.throughput


def _work(options: argparse.Namespace) -> None:
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    scatter = random.Random(hvd.rank())
    gradient = torch.ones(max(1, int(options.gradient_mb * 1e6 / 4)))
    for _ in range(options.steps):
        compute_ms = max(0.0, scatter.gauss(options.compute_ms, options.jitter_ms))
        with hvprof.region("forward"):
            time.sleep(compute_ms / 3e3)
        with hvprof.region("backward"):
            time.sleep(compute_ms / 1.5e3)
        with hvprof.region("exposed", kind="communication"):
            hvd.allreduce_(gradient, name="gradient")
        hvprof.step()
    if hvd.rank() == 0:
        ranks.report({"size": hvd.size()})
    hvd.shutdown()


if __name__ == "__main__":
    harness.run(main, "emulated_forecast")
