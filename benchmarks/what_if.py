"""Does `hvprof whatif` predict the effect of a faster or a slower network?

A model whose layers compute by sleeping, so that ranks do not contend for this machine's cores,
trains with hvd_ext on emulated hosts (testbed/emulated_hosts.py), a rank each, over links of every
speed of `--gbit`. Each job is recorded with a trace; from each recording the steps over the other
speeds are predicted, and compared with the jobs that ran over them. Jobs alternate, `--rounds`
times; the medians of the rounds are compared.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import hvprof
from benchmarks import harness
from hvd_ext.cli import above_zero, at_least
from hvprof.analysis.replay.change import WhatIf
from hvprof.analysis.replay.whatif import Replayed, what_if
from hvprof.recording.session import begin, end, variables
from testbed import ranks
from testbed.emulated_hosts import emulated_hosts

_TRACED = 100_000
# Of each layer: elements of its weight, and milliseconds of its backward. Forward takes half.
_LAYERS = ((65_536, 6), (131_072, 8), (262_144, 10), (262_144, 14)) * 2
_STEPS = 40
# Of its own accord hvd_ext would cut other buckets over another network, which is not replayed.
_BUCKETS = {"HVD_EXT_BUCKET_BYTES": "1 MiB"}


def main(arguments: Sequence[str]) -> int:
    """Build the hosts, record, and predict; or be a rank."""
    parser = harness.parser("what_if", __doc__, "--gbit 0.2 2 --json F", rounds=3)
    parser.add_argument("--hosts", type=at_least(2), default=2, help="emulated hosts (2)")
    parser.add_argument(
        "--gbit", type=above_zero, nargs="+", default=[0.2, 2.0], help="speeds of the links (0.2 2)"
    )
    options = parser.parse_args(arguments)
    if options.worker:
        _work()
        return 0
    if len(set(options.gbit)) < 2:
        raise harness.BenchmarkError(f"--gbit {options.gbit[0]:g}: give at least two speeds")
    cases = _cases(options.hosts, sorted(set(options.gbit)), options.rounds)
    _print(cases)
    if options.json:
        harness.write_result(options.json, {"hosts": options.hosts, "cases": cases})
    return 0


def _cases(hosts: int, speeds: Sequence[float], rounds: int) -> list[dict[str, Any]]:
    found: dict[tuple[float, float], list[Replayed]] = defaultdict(list)
    step_s: dict[float, list[float]] = defaultdict(list)
    console = Console(stderr=True)
    for number, gbit in itertools.product(range(1, rounds + 1), speeds):
        with tempfile.TemporaryDirectory() as folder:
            recording = _record(Path(folder) / "run", hosts, gbit)
            for other in speeds:
                if other != gbit:
                    found[gbit, other].append(what_if(recording, WhatIf(bandwidth=other / gbit)))
        step_s[gbit].append(_step_s(recording))
        console.print(
            f"round {number} of {rounds}, {gbit:g} Gbit/s: {1e3 * step_s[gbit][-1]:.1f} ms",
            style="dim",
        )
    return [
        _case(gbit, other, replayed, step_s[other], step_s[gbit])
        for (gbit, other), replayed in found.items()
    ]


def _record(folder: Path, count: int, gbit: float) -> hvprof.Recording:
    begin(folder, ["python", "-m", "benchmarks.what_if"], force=False)
    with emulated_hosts(count, gbit) as hosts:
        ranks.launch(
            "benchmarks.what_if",
            count,
            [],
            start=hosts.mpirun(1),
            variables={**hosts.environment(), **variables(folder, _TRACED), **_BUCKETS},
        )
    end(folder, 0)
    return hvprof.load(folder)


def _step_s(recording: hvprof.Recording) -> float:
    """Median of a rank's steps, as a mean over the ranks."""
    return statistics.fmean(
        statistics.median(step.time_s for step in rank.steps) for rank in recording.ranks
    )


def _case(
    gbit: float,
    other: float,
    replayed: Sequence[Replayed],
    measured_s: Sequence[float],
    recorded_s: Sequence[float],
) -> dict[str, Any]:
    predicted_s = [statistics.fmean((one.low_s, one.high_s)) for one in replayed]
    true_s = statistics.median(measured_s)
    return {
        "recorded_gbit": gbit,
        "predicted_gbit": other,
        "recorded_s": statistics.median(recorded_s),
        "predicted_s": statistics.median(predicted_s),
        "predicted_interval_s": [
            min(one.low_s for one in replayed),
            max(one.high_s for one in replayed),
        ],
        "measured_s": true_s,
        "measured_interval_s": [min(measured_s), max(measured_s)],
        "predicted_over_measured": statistics.median(predicted_s) / true_s,
        "replay_error": max(one.error for one in replayed),
        "knows_ready": all(one.knows_ready for one in replayed),
    }


def _print(cases: Sequence[dict[str, Any]]) -> None:
    table = Table(title="A step over another network, ms", title_justify="left")
    names = (
        "recorded at",
        "predicted for",
        "recorded",
        "predicted",
        "measured",
        "ratio",
        "replay off",
    )
    for name in names:
        table.add_column(name, justify="right")
    for case in cases:
        table.add_row(
            f"{case['recorded_gbit']:g} Gbit/s",
            f"{case['predicted_gbit']:g} Gbit/s",
            *(f"{1e3 * case[f'{name}_s']:.1f}" for name in ("recorded", "predicted", "measured")),
            f"{case['predicted_over_measured']:.3f}",
            f"{100 * case['replay_error']:.2f} %",
        )
    Console().print(table)


def _work() -> None:
    import time

    import torch

    import hvd_ext.torch as hvd

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, time_s: float) -> Any:
            ctx.save_for_backward(weight)
            ctx.time_s = time_s
            time.sleep(time_s / 2)
            return x + weight[0]

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (weight,) = ctx.saved_tensors
            time.sleep(ctx.time_s)
            return gradient, torch.full_like(weight, float(gradient.sum())), None

    hvd.init()
    torch.set_num_threads(1)
    weights = [torch.nn.Parameter(torch.zeros(count)) for count, _ in _LAYERS]
    names = [(f"layer{index}", weight) for index, weight in enumerate(weights)]
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1e-6), names)
    x = torch.ones(1)
    hvprof.step()
    for _ in range(_STEPS):
        optimizer.zero_grad()
        out = x
        with hvprof.region("forward"):
            for weight, (_, time_ms) in zip(weights, _LAYERS, strict=True):
                out = Sleep.apply(out, weight, time_ms / 1e3)
        with hvprof.region("backward"):
            out.sum().backward()
        optimizer.step()
        hvprof.step()
    if not all(torch.equal(weight, weight[:1].expand_as(weight)) for weight in weights):
        raise harness.BenchmarkError("a sum of gradients is wrong")
    if hvd.rank() == 0:
        ranks.report(None)
    hvd.shutdown()


if __name__ == "__main__":
    harness.run(main, "what_if")
