"""The effect of hvd_ext: the same trainings with Horovod, default and tuned, and with hvd_ext.

A small EDSR learns from photographs, ResNet-50 runs on random data, both at 2 ranks
under horovodrun and hvprof. The arms take turns, a part of the training each, and next to
them the same ranks train without any exchange: the limit. The seed is the same, so EDSR's
losses must be, to the last bit: that is checked. The gradients of EDSR in its published size
are exchanged alone, next to a copy of as many bytes. Last, the networks are evaluated: EDSR on
photographs, and ResNet-18 on digits, which must be the same with both exchanges, and good.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks import harness
from benchmarks.demo.demo import EDSR, RANKS, RESNET, Demo, Lengths
from benchmarks.demo.quality import DIGITS
from benchmarks.demo.stages import built_beside
from benchmarks.demo.table import ARMS, conclusion, draw
from hvd_ext.cli import at_least

_EXAMPLE = "example: python -m benchmarks.demo --output runs/demo"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo", description=__doc__.splitlines()[0], epilog=_EXAMPLE
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="DIR",
        help="an earlier demo is replaced, once this one is complete",
    )
    parser.add_argument(
        "--steps",
        type=at_least(Lengths.rounds),
        default=Lengths.edsr_total,
        help=f"training steps of EDSR ({Lengths.edsr_total})",
    )
    options = parser.parse_args(arguments)
    turn = min(Lengths.edsr_steps, options.steps // Lengths.rounds)
    lengths = Lengths(edsr_steps=turn, edsr_total=options.steps)
    began_s = time.monotonic()
    with built_beside(options.output) as folder:
        demo = Demo(folder, lengths)
        rows = [*demo.train_edsr(), *demo.train_resnet(), demo.exchange()]
        quality = {**demo.evaluate(), "digits_accuracy": demo.learn_digits()}
        summary = {
            "rows": [row.as_json() for row in rows],
            **quality,
            "ranks": RANKS,
            "arms": {name: asdict(arm) for name, arm in ARMS.items()},
            "lengths": asdict(lengths),
            "edsr_flags": EDSR,
            "resnet50_flags": RESNET,
            "digits_flags": DIGITS,
            "stages": demo.stages.as_json(),
            "seconds": round(time.monotonic() - began_s, 1),
        }
        harness.write_result(folder / "summary.json", summary)
    Console().print(draw(rows, _caption(demo)))
    Console().print(conclusion(summary, options.output))
    return 0


def _caption(demo: Demo) -> str:
    variables = ARMS["horovod_by_hand"].variables
    by_hand = ", ".join(f"{name}={value}" for name, value in variables.items())
    return (
        f"{RANKS} ranks, {os.cpu_count()} cores; medians of {demo.lengths.rounds} interleaved "
        f"rounds; allreduce: time of a rank, by hvprof. Tuned: {by_hand}. No exchange: the "
        "same ranks without an exchange, freed memory kept; for gradients alone, a copy of as many "
        "bytes. "
        f"{demo.stages.on_the_load()}"
    )


if __name__ == "__main__":
    harness.run(main, "demo")
