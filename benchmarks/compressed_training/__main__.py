"""What does training learn whose gradients are compressed between hosts, and how soon?

On emulated hosts a small model (tasks.py) learns from the same weights
and samples in every format, with several seeds. The `forgetful` formats forget what they leave
out; they show what keeping that is worth.

The result, under "formats": `losses`, of each seed, the mean of the last tenth of the steps;
`mean` of these; `off_none`, by how much that is above the mean of none; `within_spread`, whether
it is off by no more than none's losses differ from seed to seed (`spread`); `step_ms`, the
median; `seconds_to_target` until the loss, as the mean of the seeds and of a tenth of the steps,
is the `target_loss`, which none reaches in half of the steps (null: never); `ratio_vs_none`, how
many times as soon as none; `curve`, that loss from step to step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.compressed_training.tasks import KINDS
from hvd_ext.cli import at_least, output_file, progress
from testbed import ranks
from testbed.emulated_hosts import emulated_hosts

_FORGETFUL = ", forgetful"
_KEEPING = ("int8", "powersgd:rank=4")
_FORMATS = ("none", "bf16", "fp16", *_KEEPING, *(name + _FORGETFUL for name in _KEEPING))
# Of the steps of a run, in which none reaches the loss that all are timed to.
_TO_TARGET = 0.5


def main(arguments: Sequence[str]) -> int:
    """Build the hosts and launch the ranks, or be one."""
    example = "--model resnet --hosts 2 --ranks-per-host 1 --gbit 0.1 --json F"
    parser = harness.parser("compressed_training", __doc__, example)
    harness.add_hosts(parser)
    parser.add_argument("--model", choices=KINDS, default="edsr", help="what learns (edsr)")
    parser.add_argument("--steps", type=at_least(10), default=200, help="of each run (200)")
    parser.add_argument("--seeds", type=at_least(2), default=3, help="runs of each format (3)")
    parser.add_argument("--plot", type=output_file, metavar="PNG", help="draw the losses there")
    options = parser.parse_args(arguments)
    if options.worker:
        _work(options)
        return 0
    with emulated_hosts(options.hosts, options.gbit) as hosts:
        kept = [f"--{name}={vars(options)[name]}" for name in ("model", "steps", "seeds", "gbit")]
        result = ranks.launch(
            "benchmarks.compressed_training",
            options.hosts * options.ranks_per_host,
            kept,
            timeout_s=3600,
            start=hosts.mpirun(options.ranks_per_host),
            variables=hosts.environment(),
        )
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    if options.plot:
        _plot(result, options.plot)
    return 0


def _print(result: dict[str, Any]) -> None:
    table = Table(
        title=f"{result['about']}\nafter {result['steps']} steps, {result['seeds']} seeds, "
        f"{result['ranks']} ranks on {result['hosts']} hosts, {result['gbit']:g} Gbit/s"
    )
    table.add_column("", no_wrap=True)
    to_target = f"s to loss {result['target_loss']:.3g}"
    for column in ("mean loss", "least to most", "off none", "ms a step", to_target, "of none"):
        table.add_column(column, justify="right")
    for row in result["formats"]:
        losses, seconds = row["losses"], row["seconds_to_target"]
        table.add_row(
            row["name"],
            f"{row['mean']:.4f}",
            f"{min(losses):.4f} to {max(losses):.4f}",
            f"{row['off_none']:+.4f}" + ("" if row["within_spread"] else " !"),
            f"{row['step_ms']:.0f}",
            "never" if seconds is None else f"{seconds:.1f}",
            "" if seconds is None else f"{row['ratio_vs_none']:.2f} x",
        )
    console = Console(width=max(110, Console().width))
    console.print(table)
    console.print(f"! is off by more than none's losses differ: {result['spread']:.4f}")


def _plot(result: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(ncols=2, figsize=(11, 4.5), layout="constrained", sharey=True)
    for row in result["formats"]:
        curve = np.array(row["curve"])
        step = np.arange(result["steps"] - len(curve), result["steps"]) + 1
        style = {"ls": ":"} if row["name"].endswith(_FORGETFUL) else {}
        panels[0].semilogy(step, curve, lw=1.2, label=row["name"], **style)
        panels[1].semilogy(step * row["step_ms"] / 1e3, curve, lw=1.2, **style)
    for axes, label in zip(panels, ("steps", f"s, at {result['gbit']:g} Gbit/s"), strict=True):
        axes.axhline(result["target_loss"], color="0.6", lw=0.8)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3, which="both")
    panels[0].set_ylabel(f"loss, mean of {result['seeds']} seeds and of a tenth of the steps")
    panels[0].legend(fontsize=8)
    figure.suptitle(result["about"], fontsize=10)
    figure.savefig(path, dpi=120)


def _work(options: argparse.Namespace) -> None:
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    losses: dict[str, list[list[float]]] = {name: [] for name in _FORMATS}
    times_s: dict[str, list[list[float]]] = {name: [] for name in _FORMATS}
    total = options.seeds * len(_FORMATS)
    with progress("training", total, shown=hvd.rank() == 0) as advance:
        for seed in range(options.seeds):
            for name in _FORMATS:
                learnt, taken_s = _train(options.model, name, seed, options.steps)
                losses[name].append(learnt)
                times_s[name].append(taken_s)
                advance(sum(map(len, losses.values())), name)
    if hvd.rank() == 0:
        ranks.report(
            {
                "model": options.model,
                "about": KINDS[options.model].about,
                "steps": options.steps,
                "seeds": options.seeds,
                "hosts": hvd.cross_size(),
                "ranks": hvd.size(),
                "gbit": options.gbit,
                **compare(losses, times_s),
            }
        )
    hvd.shutdown()


def _train(model: str, name: str, seed: int, steps: int) -> tuple[list[float], list[float]]:
    """The loss of each step, over all ranks, and when it was over, in seconds."""
    import torch

    import hvd_ext.torch as hvd

    task = KINDS[model].make(seed, hvd.rank())
    optimizer: Any = hvd.DistributedOptimizer(
        task.optimizer,
        named_parameters=task.model.named_parameters(),
        compression=name.removesuffix(_FORGETFUL),
    )
    losses, over_s = [], []
    start_s = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.loss()
        loss.backward()
        optimizer.step()
        if name.endswith(_FORGETFUL):
            optimizer.keep_drained({})
        losses.append(float(loss.detach()))
        over_s.append(time.perf_counter() - start_s)
    return hvd.allreduce(torch.tensor(losses, dtype=torch.float64), name="loss").tolist(), over_s


def compare(
    losses: dict[str, list[list[float]]], times_s: dict[str, list[list[float]]]
) -> dict[str, Any]:
    """The checks that this module's docstring lists.

    Args:
        losses: by format, of each seed, of each step.
        times_s: when that step was over; alike.
    """
    steps = len(losses["none"][0])
    window = max(1, steps // 10)
    # Each value is known once its last step is over.
    curves = {
        name: np.convolve(np.mean(of, axis=0), np.full(window, 1 / window), "valid")
        for name, of in losses.items()
    }
    ends = {name: [statistics.mean(one[-window:]) for one in of] for name, of in losses.items()}
    spread = max(ends["none"]) - min(ends["none"])
    target = float(curves["none"][int(_TO_TARGET * steps) - window])
    rows = []
    to_target: dict[str, float | None] = {}
    for name, curve in curves.items():
        over_s = np.mean(times_s[name], axis=0)
        reached = np.flatnonzero(curve <= target)
        seconds = float(over_s[reached[0] + window - 1]) if len(reached) else None
        to_target[name] = seconds
        none_s = to_target["none"]
        off = statistics.mean(ends[name]) - statistics.mean(ends["none"])
        rows.append(
            {
                "name": name,
                "losses": ends[name],
                "mean": statistics.mean(ends[name]),
                "off_none": off,
                "within_spread": abs(off) <= spread,
                "step_ms": 1e3 * float(np.median(np.diff(times_s[name], axis=1))),
                "seconds_to_target": seconds,
                "ratio_vs_none": none_s / seconds if none_s and seconds else None,
                "curve": [float(f"{value:.5g}") for value in curve],
            }
        )
    return {"spread": spread, "target_loss": target, "formats": rows}


if __name__ == "__main__":
    harness.run(main, "compressed_training")
