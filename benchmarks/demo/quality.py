"""Quality of the demo's networks, with each exchange: asserted, not only shown."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.demo.stages import Stages
from benchmarks.harness import BenchmarkError

LEAST_ACCURACY = 0.95
# ResNet-18 on digits of 8 x 8 pixels, enlarged.
DIGITS = ["--model", "resnet18", "--image-size", "32", "--no-augmentation", "--threads", "1"]
DIGITS += ["--batch-size", "8", "--epochs", "1", "--warmup-epochs", "0", "--keep", "1"]
DIGITS += ["--schedule", "cosine", "--label-smoothing", "0.1"]


def judge_edsr(
    stages: Stages, checkpoints: Mapping[str, Path], photographs: Path
) -> dict[str, dict[str, Any]]:
    """The results of edsr.evaluate for each exchange's EDSR.

    Args:
        stages: runs it.
        checkpoints: by the name of the exchange.
        photographs: that were not learnt from.

    Raises:
        BenchmarkError: one is not better than bicubic, or they differ.
    """
    found = {}
    for exchange, checkpoint in checkpoints.items():
        flags = ("--checkpoint", checkpoint, "--data", photographs, "--json")
        said = stages.python(f"Evaluating EDSR by {exchange}", "edsr.evaluate", *flags)
        found[exchange] = json.loads(said[said.index("{") :])
        require_better(exchange, found[exchange]["mean"])
    require_same("EDSR", {exchange: row["images"] for exchange, row in found.items()})
    return found


def read_digits(logs: Mapping[str, Path]) -> float:
    """The accuracy on held-out digits, after the last epoch.

    Args:
        logs: log.csv by the name of the exchange.

    Raises:
        BenchmarkError: it is below LEAST_ACCURACY, or exchanges gave different figures.
    """
    rows = {}
    for exchange, log in logs.items():
        with log.open(newline="") as stream:
            rows[exchange] = [{**row, "img_per_s": ""} for row in csv.DictReader(stream)]
    require_same("ResNet", rows)
    accuracy = float(next(iter(rows.values()))[-1]["val_accuracy"])
    if accuracy < LEAST_ACCURACY:
        raise BenchmarkError(
            f"ResNet reads {accuracy:.1%} of the held-out digits, less than {LEAST_ACCURACY:.0%}"
        )
    return accuracy


def require_better(exchange: str, mean: Mapping[str, float]) -> None:
    """Raise BenchmarkError if EDSR is no better than bicubic."""
    edsr, bicubic = mean["edsr_rgb_db"], mean["bicubic_rgb_db"]
    if edsr <= bicubic:
        raise BenchmarkError(
            f"EDSR by {exchange} reaches {edsr:.2f} dB, bicubic {bicubic:.2f} dB: it has learnt "
            "too little"
        )


def require_same(model: str, found: Mapping[str, Any]) -> None:
    """Raise BenchmarkError if exchanges gave different figures."""
    first, *others = found
    if differing := [exchange for exchange in others if found[exchange] != found[first]]:
        raise BenchmarkError(
            f"{model}: the figures by {' and '.join(differing)} differ from those by {first}"
        )
