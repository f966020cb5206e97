"""hvprof whatif: the time of a step with another exchange, or without the slowest rank."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any

from hvd_ext.arithmetic.allreduce_work import FORMULAS
from hvd_ext.cli import size_bytes
from hvd_ext.errors import UsageError
from hvprof.analysis.replay.change import WhatIf
from hvprof.analysis.replay.whatif import Replayed, what_if
from hvprof.commands.shared import console, print_json
from hvprof.recording.load import load
from hvprof.reporters.terminal.whatif import render

HELP = "predict a step with another exchange, or without the slowest rank"
ABOUT = (
    "Replay a recording's trace over another network, by another algorithm, in other buckets, "
    "without any exchange, or with the slowest rank as fast as the others. An unchanged replay "
    "comes first; the command fails if that is 5 % off."
)
EXAMPLE = "whatif runs/a --bandwidth 10x"

_UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="RUN", type=Path, help="recording made with --trace N")
    parser.add_argument(
        "--bandwidth",
        type=_factor,
        default=1.0,
        metavar="FACTOR",
        help="factor on the bandwidth, as in 10x or 0.1x",
    )
    parser.add_argument(
        "--latency",
        metavar="X",
        help="latency of an exchange: a factor such as 0.1x, or a time such as 50us",
    )
    parser.add_argument(
        "--algorithm",
        metavar="NAME",
        help=f"allreduce algorithm: one of {', '.join(FORMULAS)}",
    )
    parser.add_argument(
        "--bucket", type=_bucket, metavar="SIZE", help="size of gradient buckets, as in 4MiB"
    )
    parser.add_argument("--no-exchange", action="store_true", help="remove the exchange")
    parser.add_argument(
        "--without-slowest",
        action="store_true",
        help="have the slowest rank compute as fast as the others: what it costs",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    asked = _asked(options)
    found = what_if(load(options.directory), asked)
    if options.json:
        print_json(as_json(found, asked))
    else:
        render(found, asked, console())
    return 0


def as_json(found: Replayed, asked: WhatIf) -> dict[str, Any]:
    """Return the answer in JSON's types; times in seconds."""
    low, high = found.speedup
    return {
        "asked": dataclasses.asdict(asked),
        "steps": found.steps,
        "replay_error_percent": 100 * found.error,
        "exchange_latency_s": [line.latency_s for line in found.network.lines],
        "exchange_byte_s": [line.byte_s for line in found.network.lines],
        "knows_ready": found.knows_ready,
        "step_time_s": found.recorded_s,
        "predicted_low_s": found.low_s,
        "predicted_high_s": found.high_s,
        "speedup_low": low,
        "speedup_high": high,
        "slowed_s": found.slowed_s,
        "slowest": dataclasses.asdict(found.slowest) if found.slowest else None,
    }


def _asked(options: argparse.Namespace) -> WhatIf:
    latency, latency_s = 1.0, None
    if options.latency is not None:
        match = re.fullmatch(r"(\d*\.?\d+(?:e-?\d+)?) ?(x|s|ms|us)", options.latency)
        if match is None:
            raise UsageError(
                f"--latency {options.latency!r}: use a factor such as 0.1x, or a time such as 50us"
            )
        number, unit = float(match.group(1)), match.group(2)
        latency, latency_s = (number, None) if unit == "x" else (1.0, number * _UNITS_S[unit])
    asked = WhatIf(
        options.bandwidth,
        latency,
        latency_s,
        options.algorithm,
        options.bucket,
        not options.no_exchange,
        options.without_slowest,
    )
    if asked == WhatIf():
        raise UsageError(
            "no change requested: give --bandwidth, --latency, --algorithm, --bucket, "
            "--no-exchange or --without-slowest"
        )
    if not asked.exchange and dataclasses.replace(asked, exchange=True) != WhatIf():
        raise UsageError("--no-exchange excludes other changes: give it alone")
    return asked


def _factor(text: str) -> float:
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor above 0: use 10x or 0.1x")
    return value


def _bucket(text: str) -> int:
    value = size_bytes(text)
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is too small for a gradient: use a size such as 4MiB"
        )
    return value
