"""Does `hvd-launch tune allreduce` make a stock Horovod job's exchange between hosts faster?

On emulated hosts (testbed/emulated_hosts.py): tunes the MPI library, which has nothing
to do with any model, then exchanges ResNet-50's gradients by Horovod with its defaults, in
jobs with the library's defaults and with the settings found, interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import harness
from benchmarks.harness import gradients, shapes
from hvd_ext.arithmetic.statistics import gain
from hvd_ext.cli import at_least
from hvd_ext.system.files import make_folder
from hvd_ext.system.process import started
from testbed import ranks
from testbed.emulated_hosts import Hosts, emulated_hosts


def main(arguments: Sequence[str]) -> int:
    """Build the hosts, tune, and compare; or be a rank."""
    parser = harness.parser("tuned_cluster", __doc__, "--hosts 2 --gbit 2 --json F", rounds=5)
    harness.add_hosts(parser)
    parser.add_argument("--model", choices=sorted(shapes.MODELS), default="resnet50")
    parser.add_argument("--pairs", type=at_least(2), default=6, help="jobs of either side (6)")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/tuned_cluster"), help="folder of the tuning"
    )
    options, tuning = parser.parse_known_args(arguments)
    if options.worker:
        _work(options)
        return 0
    make_folder(options.output)
    with emulated_hosts(options.hosts, options.gbit) as hosts:
        settings = _tune(hosts, options, tuning)
        result: dict[str, Any] = {"settings": settings, "ratio": None}
        if settings:
            result |= _compare(hosts, options, settings)
    result |= {name: getattr(options, name) for name in ("hosts", "ranks_per_host", "gbit")}
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _tune(hosts: Hosts, options: argparse.Namespace, more: Sequence[str]) -> dict[str, str]:
    """Run `hvd-launch tune allreduce` as on a head node; what it found, if anything."""
    mpirun = hosts.mpirun(options.ranks_per_host)
    parameters = {
        f"OMPI_MCA_{mpirun[at + 1]}": mpirun[at + 2]
        for at, word in enumerate(mpirun)
        if word == "--mca"
    }
    slots = mpirun[mpirun.index("-H") + 1]
    size = options.hosts * options.ranks_per_host
    command = [*mpirun[: mpirun.index("mpirun")], sys.executable, "-m", "hvd_launch", "tune"]
    command += ["allreduce", "-np", str(size), "-H", slots, "-o", str(options.output), *more]
    environment = {**os.environ, **hosts.environment(), **parameters, "OMP_NUM_THREADS": "1"}
    with started(command, env=environment) as tuning:
        code = tuning.wait()
    if code:
        raise harness.BenchmarkError(f"tune allreduce failed with exit code {code}")
    found = json.loads((options.output / "allreduce.json").read_text())["native"]
    return dict(found["settings"]) if found and found["gained"] else {}


def _compare(
    hosts: Hosts, options: argparse.Namespace, settings: Mapping[str, str]
) -> dict[str, Any]:
    sides: dict[str, Mapping[str, str]] = {"default": {}, "tuned": settings}
    times: dict[str, list[float]] = {name: [] for name in sides}
    words = [f"--model={options.model}", f"--rounds={options.rounds}"]
    for number in range(options.pairs):
        for name in sides if number % 2 == 0 else reversed(sides):
            samples = ranks.launch(
                "benchmarks.tuned_cluster",
                options.hosts * options.ranks_per_host,
                words,
                start=hosts.mpirun(options.ranks_per_host),
                variables={**hosts.environment(), **sides[name]},
            )
            times[name].append(statistics.median(samples))
    ratio = gain(times["default"], times["tuned"])
    medians = {name: 1e3 * statistics.median(found) for name, found in times.items()}
    Console().print(
        f"Horovod's exchange of {options.model}: {medians['default']:.0f} ms with the library "
        f"as it is, {medians['tuned']:.0f} ms tuned: {ratio} times as fast",
        soft_wrap=True,
    )
    bounds = {"low": ratio.low, "estimate": ratio.estimate, "high": ratio.high}
    return {"ratio": bounds, "median_ms": medians, "times_s": times, "model": options.model}


def _work(options: argparse.Namespace) -> None:
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    contender = gradients.horovod(shapes.MODELS[options.model]())
    gradients.check("horovod", contender)
    gradients.timed(contender.exchange)
    samples = [gradients.timed(contender.exchange) for _ in range(options.rounds)]
    if hvd.rank() == 0:
        ranks.report(samples)
    hvd.shutdown()


if __name__ == "__main__":
    harness.run(main, "tuned_cluster")
