"""Do the times of `hvprof layers` at larger batches predict the time of the smallest?

A convolution and a fully connected layer are timed in place, forward and backward, by one thread,
at batches of 1 to 64, `--rounds` times. All batches except the smallest predict that one, as in
`hvprof limits`, and the measured time is compared. The fully connected layer, whose
product has become narrow there, is to be named skinny; the convolution is not.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from hvd_ext.cli import at_least
from hvprof.analysis.limits.compute import batch_time
from hvprof.layers.table import LayerTable
from hvprof.layers.timing import time_layers

_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_CHANNELS, _SIDE, _POOLED = 64, 32, 4
_LAYERS = {"0": "convolution", "3": "fully connected"}


def model() -> torch.nn.Module:
    """A convolution and a fully connected layer of 4096 to 4096, which stay alone by name."""
    features = _CHANNELS * (_SIDE // _POOLED) ** 2
    return torch.nn.Sequential(
        torch.nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1),
        torch.nn.AvgPool2d(_POOLED),
        torch.nn.Flatten(),
        torch.nn.Linear(features, features),
    )


def main(arguments: Sequence[str]) -> int:
    parser = harness.parser("layer_batches", __doc__, "--json F", rounds=3)
    parser.add_argument("--repeats", type=at_least(1), default=9, help="of each batch (9)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    shape = (_CHANNELS, _SIDE, _SIDE)
    tables = [
        time_layers(f"{__spec__.name}:model", [], shape, _BATCHES, options.repeats)
        for _ in range(options.rounds)
    ]
    cases = [_case(name, tables) for name in _LAYERS]
    _print(cases)
    if options.json:
        harness.write_result(options.json, {"batches": _BATCHES, "cases": cases})
    return 0


def _case(name: str, tables: Sequence[LayerTable]) -> dict[str, Any]:
    """A layer by name: medians of the rounds."""
    found = [next(layer for layer in table.layers if layer.name == name) for table in tables]
    times_s = [
        statistics.median(layer.time_s(index) for layer in found) for index in range(len(_BATCHES))
    ]
    predicted_s = batch_time(_BATCHES[1:], times_s[1:]).at(_BATCHES[0])
    skinny = [any(layer.name == name for layer in table.skinny) for table in tables]
    return {
        "layer": _LAYERS[name],
        "product": found[0].product,
        "times_s": times_s,
        "predicted_s": predicted_s,
        "measured_s": times_s[0],
        "predicted_over_measured": predicted_s / times_s[0],
        "skinny": statistics.median(skinny) > 0.5,
    }


def _print(cases: Sequence[dict[str, Any]]) -> None:
    title = f"A batch of {_BATCHES[0]} from {_BATCHES[1]} to {_BATCHES[-1]}, one thread, ms"
    table = Table(title=title, title_justify="left")
    for name in ("layer", "predicted", "measured", "ratio", "skinny"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    for case in cases:
        table.add_row(
            case["layer"],
            *(f"{1e3 * case[f'{name}_s']:.2f}" for name in ("predicted", "measured")),
            f"{case['predicted_over_measured']:.3f}",
            "yes" if case["skinny"] else "no",
        )
    Console().print(table)


if __name__ == "__main__":
    harness.run(main, "layer_batches")
