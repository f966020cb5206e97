"""What hvd_ext changes: the same two trainings with stock Horovod and with hvd_ext.

A small EDSR learns from photographs, ResNet-50 runs on random data, both at 2 ranks
under horovodrun and hvprof. The seed is the same, so EDSR's losses must be, to the
last bit: that is checked.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

import hvprof
from benchmarks import harness, picture
from hvd_ext.cli import Advance, at_least, progress
from hvd_ext.errors import UsageError
from hvd_ext.files import make_folder
from hvd_ext.process import started
from hvprof.reporters.comparison import render

_EXAMPLE = "example: python -m benchmarks.demo --output runs/demo"
_BIN = Path(sys.executable).parent
RANKS = 2
EXCHANGES = ("horovod", "hvd_ext")
# Astronaut was not trained on; the part of it that the picture shows: left, top, right, bottom.
PHOTOGRAPH, CROP = "astronaut.png", (150, 10, 310, 170)

EDSR = ["--scale", "2", "--blocks", "4", "--features", "32", "--patch", "24", "--batch-size", "4"]
EDSR += ["--lr", "1e-3", "--lr-decay-every", "1500", "--seed", "1", "--threads", "1"]
RESNET = ["--synthetic", "--batch-size", "4", "--image-size", "64", "--threads", "1"]
RESNET += ["--num-warmup-batches", "5", "--num-batches-per-iter", "5", "--num-iters", "8"]
RESNET_STEPS = 5 + 5 * 8


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo", description=__doc__.splitlines()[0], epilog=_EXAMPLE
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="an earlier demo is replaced"
    )
    parser.add_argument(
        "--steps", type=at_least(1), default=2200, help="training steps of EDSR (2200)"
    )
    options = parser.parse_args(arguments)
    if options.output.exists() and not (options.output / "photographs").is_dir():
        raise UsageError(f"{options.output} is not an earlier demo: name another --output")
    shutil.rmtree(options.output, ignore_errors=True)
    make_folder(options.output)
    began = time.monotonic()
    summary = _Demo(options.output.resolve(), options.steps).run()
    summary["seconds"] = round(time.monotonic() - began, 1)
    harness.write_result(options.output / "summary.json", summary)
    _print(summary, options.output)
    return 0


class _Demo:
    def __init__(self, output: Path, steps: int) -> None:
        self.output = output
        self.steps = steps
        self.log = output / "log.txt"
        self.photographs = output / "photographs"

    def run(self) -> dict[str, Any]:
        self._python("writing photographs", "edsr.photographs", self.photographs)
        for exchange in EXCHANGES:
            self._train_edsr(exchange)
        self._check_losses()
        for exchange in EXCHANGES:
            self._train_resnet(exchange)
        quality = self._evaluate()
        return {
            **quality,
            **self._speed("edsr", self.steps),
            "resnet50": self._speed("resnet50", RESNET_STEPS),
            "ranks": RANKS,
            "losses_equal_to_the_bit": True,
            "edsr_flags": EDSR,
            "resnet50_flags": RESNET,
        }

    def _train_edsr(self, exchange: str) -> None:
        self._record(
            f"EDSR x2 with {exchange}",
            self._recording("edsr", exchange),
            "edsr.train",
            {
                "--data": self.photographs / "train",
                "--steps": self.steps,
                "--checkpoint-every": self.steps,
                "--output": self.output / f"edsr_{exchange}",
                "--exchange": exchange,
            },
            EDSR,
        )

    def _train_resnet(self, exchange: str) -> None:
        self._record(
            f"ResNet-50 with {exchange}",
            self._recording("resnet50", exchange),
            "resnet.train",
            {"--json": self.output / f"resnet50_{exchange}.json", "--exchange": exchange},
            RESNET,
        )

    def _record(
        self,
        title: str,
        recording: Path,
        module: str,
        options: dict[str, object],
        flags: Sequence[str],
    ) -> None:
        record = [_BIN / "hvprof", "record", "-o", recording, "--"]
        ranks = [_BIN / "horovodrun", "-np", RANKS, "-H", f"localhost:{RANKS}"]
        words = [word for option in options.items() for word in option]
        self._run(title, [*record, *ranks, sys.executable, "-m", module, *flags, *words])

    def _check_losses(self) -> None:
        losses = []
        for exchange in EXCHANGES:
            with (self.output / f"edsr_{exchange}" / "log.csv").open(newline="") as stream:
                losses.append([(row["step"], row["loss"]) for row in csv.DictReader(stream)])
        if losses[0] != losses[1] or not losses[0]:
            raise harness.BenchmarkError(
                f"the losses of {EXCHANGES[0]} and {EXCHANGES[1]} differ: see {self.output}"
            )

    def _evaluate(self) -> dict[str, Any]:
        checkpoint = ["--checkpoint", self.output / "edsr_hvd_ext" / "checkpoint.pt"]
        test = self.photographs / "test"
        result = self._python("evaluating", "edsr.evaluate", *checkpoint, "--data", test, "--json")
        original = test / PHOTOGRAPH
        low, high = self.output / "low.png", self.output / "edsr.png"
        drawn = self.output / "upscaled.png"
        picture.shrink(original, low, 2)
        self._python("upscaling", "edsr.upscale", low, high, *checkpoint)
        figures = json.loads(result[result.index("{") :])
        psnr_db = figures["images"][str(original)]
        picture.draw(low, high, original, CROP, psnr_db, drawn)
        mean = figures["mean"]
        return {
            "bicubic_psnr_db": mean["bicubic_rgb_db"],
            "edsr_psnr_db": mean["edsr_rgb_db"],
            "psnr_of": {Path(name).name: row for name, row in figures["images"].items()},
        }

    def _speed(self, model: str, steps: int) -> dict[str, Any]:
        recordings = [hvprof.load(self._recording(model, exchange)) for exchange in EXCHANGES]
        comparison = hvprof.compare(recordings[0], recordings[1], labels=EXCHANGES)
        text = self.output / f"comparison_{model}.txt"
        with text.open("w") as stream:
            render(comparison, Console(file=stream, width=100))
        harness.write_result(text.with_suffix(".json"), comparison.as_json())
        return {
            "images_per_second": {
                exchange: self._result(model, exchange)["images_per_second"]
                for exchange in EXCHANGES
            },
            "allreduce_ms_per_step": {
                exchange: 1e3 * recording.time_s("allreduce") / steps
                for exchange, recording in zip(EXCHANGES, recordings, strict=True)
            },
        }

    def _result(self, model: str, exchange: str) -> dict[str, Any]:
        name = f"edsr_{exchange}/summary.json" if model == "edsr" else f"{model}_{exchange}.json"
        result: dict[str, Any] = json.loads((self.output / name).read_text())
        return result

    def _recording(self, model: str, exchange: str) -> Path:
        return self.output / f"recording_{model}_{exchange}"

    def _python(self, title: str, module: str, *arguments: object) -> str:
        return self._run(title, [sys.executable, "-m", module, *arguments])

    def _run(self, title: str, command: Sequence[object]) -> str:
        """Run a command, its output kept in the log; a count in it moves the bar."""
        words = [str(word) for word in command]
        output: list[str] = []
        environment = {**os.environ, "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with (
            self.log.open("a") as log,
            _stage(title) as advance,
            started(words, env=environment, **pipes) as process,
        ):
            log.write(f"$ {' '.join(words)}\n")
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                output.append(line)
                if count := re.search(r"(\d+)/(\d+)  (.*)", line):
                    done, total, note = count.groups()
                    advance(int(done), note, int(total))
            if process.wait() != 0:
                tail = "".join(output[-15:])
                raise harness.BenchmarkError(
                    f"{title} failed, see {self.log}; it ended with:\n{tail}"
                )
            advance(1, "", 1)
        return "".join(output)


@contextmanager
def _stage(title: str) -> Iterator[Advance]:
    """A bar on a terminal; elsewhere one line, and how long it took."""
    terminal = sys.stderr.isatty()
    began_s = time.monotonic()
    if not terminal:
        print(title, end="", file=sys.stderr, flush=True)
    try:
        with progress(title, shown=terminal) as advance:
            yield advance
    finally:
        if not terminal:
            print(f": {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)


def _print(summary: dict[str, Any], output: Path) -> None:
    table = Table(caption=f"{RANKS} ranks on this machine; times are of a rank, by hvprof")
    for heading in ("", "stock Horovod", "hvd_ext", "gained"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, speed in (("EDSR x2", summary), ("ResNet-50", summary["resnet50"])):
        for key, unit, better in (
            ("images_per_second", "images/s", 1),
            ("allreduce_ms_per_step", "ms of allreduce a step", -1),
        ):
            before, after = (speed[key][exchange] for exchange in EXCHANGES)
            gain = (after / before) ** better
            table.add_row(f"{name}, {unit}", f"{before:.2f}", f"{after:.2f}", f"{gain:.2f} x")
    table.add_section()
    bicubic, edsr = summary["bicubic_psnr_db"], summary["edsr_psnr_db"]
    table.add_row("held-out PSNR, dB RGB", f"{bicubic:.2f} bicubic", f"{edsr:.2f} EDSR", "")
    console = Console()
    console.print(table)
    console.print(
        Panel.fit(
            f"EDSR beats bicubic by {edsr - bicubic:.2f} dB; both runs gave the same losses to "
            f"the last bit.\nPicture: {output}/upscaled.png    "
            f"Tables: {output}/comparison_*.txt    All figures: {output}/summary.json\n"
            f"Next: hvprof report {output}/recording_edsr_hvd_ext"
        )
    )


if __name__ == "__main__":
    harness.run(main, "demo")
