"""What does training learn whose gradients are rounded between hosts?

On emulated hosts EDSR (4 blocks of 32 features, Adam) learns from procedural pictures, from
the same weights and samples in every format, with several seeds. `int8, forgetful` forgets
what it rounds away; it shows what keeping that is worth. Compared is the mean loss of the
last tenth of the steps.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from hvd_ext.cli import at_least, progress
from testbed import ranks
from testbed.emulated_hosts import emulated_hosts

_FORGETFUL = "int8, forgetful"
_FORMATS = ("none", "bf16", "fp16", "int8", _FORGETFUL)
_PATCH, _BATCH, _IMAGES = 24, 4, 16


def main(arguments: Sequence[str]) -> int:
    """Build the hosts and launch the ranks, or be one."""
    parser = harness.parser("compressed_training", __doc__, "--hosts 2 --json F")
    harness.add_hosts(parser)
    parser.add_argument("--steps", type=at_least(10), default=300, help="of each run (300)")
    parser.add_argument("--seeds", type=at_least(2), default=3, help="runs of each format (3)")
    options = parser.parse_args(arguments)
    if options.worker:
        _work(options)
        return 0
    with emulated_hosts(options.hosts, options.gbit) as hosts:
        result = ranks.launch(
            "benchmarks.compressed_training",
            options.hosts * options.ranks_per_host,
            [f"--steps={options.steps}", f"--seeds={options.seeds}"],
            timeout_s=3600,
            start=hosts.mpirun(options.ranks_per_host),
            variables=hosts.environment(),
        )
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _print(result: dict[str, Any]) -> None:
    table = Table(
        title=f"loss after {result['steps']} steps, {result['seeds']} seeds, "
        f"{result['ranks']} ranks on {result['hosts']} hosts"
    )
    table.add_column("")
    for column in ("mean", "least to most", "off none by, seed for seed"):
        table.add_column(column, justify="right")
    for row in result["formats"]:
        losses = row["losses"]
        table.add_row(
            row["name"],
            f"{row['mean']:.4f}",
            f"{min(losses):.4f} to {max(losses):.4f}",
            f"{row['off_none']:+.4f}",
        )
    Console().print(table)


def _work(options: argparse.Namespace) -> None:
    import horovod.torch as hvd
    import torch

    torch.set_num_threads(1)
    hvd.init()
    losses: dict[str, list[float]] = {name: [] for name in _FORMATS}
    total = options.seeds * len(_FORMATS)
    with progress("training", total, shown=hvd.rank() == 0) as advance:
        for seed in range(options.seeds):
            for name in _FORMATS:
                losses[name].append(_train(name, seed, options.steps))
                advance(sum(map(len, losses.values())), name)
    if hvd.rank() == 0:
        ranks.report(
            {
                "steps": options.steps,
                "seeds": options.seeds,
                "hosts": hvd.cross_size(),
                "ranks": hvd.size(),
                "formats": [
                    {
                        "name": name,
                        "losses": own,
                        "mean": statistics.mean(own),
                        "off_none": statistics.mean(
                            a - b for a, b in zip(own, losses["none"], strict=True)
                        ),
                    }
                    for name, own in losses.items()
                ],
            }
        )
    hvd.shutdown()


def _train(name: str, seed: int, steps: int) -> float:
    import torch

    import hvd_ext.torch as hvd
    from edsr.data import synthetic_image
    from edsr.model import edsr

    torch.manual_seed(seed)
    model = edsr(2, blocks=4, features=32)
    learnt = [p for p in model.parameters() if p.requires_grad]
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.Adam(learnt, lr=1e-3),
        named_parameters=model.named_parameters(),
        compression="int8" if name == _FORGETFUL else name,
    )
    images = [synthetic_image(0, index, 4 * _PATCH) for index in range(_IMAGES)]
    rng = np.random.default_rng([seed, hvd.rank()])
    losses = []
    for _ in range(steps):
        high = torch.stack([_cut(images[rng.integers(_IMAGES)], rng) for _ in range(_BATCH)])
        low = torch.nn.functional.avg_pool2d(high, 2)
        optimizer.zero_grad()
        loss = torch.nn.functional.l1_loss(model(low), high)
        loss.backward()
        optimizer.step()
        if name == _FORGETFUL:
            optimizer.keep_drained({})
        losses.append(float(loss.detach()))
    own = statistics.mean(losses[-(steps // 10) :])
    return float(hvd.allreduce(torch.tensor(own, dtype=torch.float64), name="loss"))


def _cut(image: Any, rng: np.random.Generator) -> Any:
    import torch

    side = 2 * _PATCH
    top, left = rng.integers(0, np.array(image.shape[:2]) - side + 1)
    patch = np.ascontiguousarray(image[top : top + side, left : left + side].transpose(2, 0, 1))
    return torch.from_numpy(patch).float()


if __name__ == "__main__":
    harness.run(main, "compressed_training")
