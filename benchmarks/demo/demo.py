"""The parts of the demo: what is trained and exchanged, how long, and what is checked."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import hvprof
from benchmarks import harness
from benchmarks.demo import picture
from benchmarks.demo.quality import DIGITS, judge_edsr, read_digits
from benchmarks.demo.stages import PHOTOGRAPHS, Stages
from benchmarks.demo.table import ARMS, PEERS, Row
from hvprof.analysis.comparison.inputs import load_side
from hvprof.reporters.comparison import render
from testbed import ranks

RANKS = 2
# Astronaut was not trained on; the part of it that the picture shows: left, top, right, bottom.
PHOTOGRAPH, CROP = "astronaut.png", (150, 10, 310, 170)

EDSR = ["--scale", "2", "--blocks", "4", "--features", "32", "--patch", "24", "--batch-size", "4"]
EDSR += ["--lr", "1e-3", "--lr-decay-every", "120", "--seed", "1", "--threads", "1"]
RESNET = ["--synthetic", "--batch-size", "4", "--image-size", "64", "--threads", "1"]
PUBLISHED = "edsr_full"
# What they have learnt is compared; Horovod's losses do not depend on how it is set.
JUDGED = ("horovod_by_hand", "hvd_ext")


@dataclass(frozen=True)
class Lengths:
    """How long what takes; the defaults are made for less than 6 minutes on 2 idle cores.

    Attributes:
        rounds: of turns, in the trainings.
        edsr_steps: of EDSR, a turn.
        edsr_total: steps that EDSR takes with each exchange, until it is evaluated.
        resnet_warm_up, resnet_steps: of ResNet-50, a turn.
        exchange_rounds: of turns, in the exchange of the published size.
        exchanges: of gradients, a turn.
    """

    rounds: int = 2
    edsr_steps: int = 100
    edsr_total: int = 360
    resnet_warm_up: int = 5
    resnet_steps: int = 8
    exchange_rounds: int = 1
    exchanges: int = 5


class Demo:
    """The parts of the demo; each leaves its files in one folder."""

    def __init__(self, folder: Path, lengths: Lengths) -> None:
        """Nothing is run yet.

        Args:
            folder: which exists.
            lengths: of the parts.
        """
        self.folder, self.lengths = folder, lengths
        self.photographs = folder / PHOTOGRAPHS
        self.stages = Stages(folder / "log.txt")

    def train_edsr(self) -> list[Row]:
        """Train on photographs, configurations interleaved, then both exchanges to the end.

        Raises:
            BenchmarkError: a job failed, or exchanges gave different losses.
        """
        lengths = self.lengths
        self.stages.python("Writing photographs", "edsr.photographs", self.photographs)
        per_second: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for number in range(1, lengths.rounds + 1):
            for arm in _turns(number, ARMS):
                self._edsr(arm, number * lengths.edsr_steps, number)
                summary = json.loads((self._edsr_folder(arm) / "summary.json").read_text())
                per_second[arm].append(summary["images_per_second"])
        if lengths.edsr_total > lengths.rounds * lengths.edsr_steps:
            for arm in JUDGED:
                self._edsr(arm, lengths.edsr_total)
        self.check_losses()
        return [
            Row("EDSR x2", "images/s", per_second),
            self._allreduce("EDSR x2", "edsr", lengths.edsr_steps),
        ]

    def _edsr(self, arm: str, until: int, number: int = 0) -> None:
        """Train to step `until`: in round `number`, recorded, or else as it is."""
        output = self._edsr_folder(arm)
        options: dict[str, object] = {
            "--data": self.photographs / "train",
            "--steps": until,
            "--checkpoint-every": until,
            "--output": output,
        }
        flags = [*EDSR, *_words(options), *(["--resume"] if output.exists() else [])]
        title = f"EDSR x2 with {ARMS[arm].title}"
        if number:
            title += f", round {number} of {self.lengths.rounds}"
        else:
            title += f", on to step {until}"
        self._train(title, arm, "edsr", "edsr.train", flags, number)

    def _edsr_folder(self, arm: str) -> Path:
        return self.folder / f"edsr_{arm}"

    def check_losses(self) -> None:
        """Compare the losses of all arms that exchange, as far as each was trained.

        Raises:
            BenchmarkError: they differ.
        """
        losses = {}
        for arm in (name for name in ARMS if name != "none"):
            with (self._edsr_folder(arm) / "log.csv").open(newline="") as stream:
                losses[arm] = [(row["step"], row["loss"]) for row in csv.DictReader(stream)]
        longest, _ = JUDGED
        if differing := [
            ARMS[arm].title
            for arm, found in losses.items()
            if found != losses[longest][: len(found)]
        ]:
            raise harness.BenchmarkError(
                f"the losses of {' and '.join(differing)} differ from those of "
                f"{ARMS[longest].title}: see {self.folder}/edsr_*/log.csv"
            )

    def train_resnet(self) -> list[Row]:
        """Train on random data, configurations interleaved.

        Raises:
            BenchmarkError: a job failed.
        """
        lengths = self.lengths
        flags = [*RESNET, "--num-warmup-batches", lengths.resnet_warm_up]
        flags += ["--num-batches-per-iter", 1, "--num-iters", lengths.resnet_steps]
        per_second: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for number in range(1, lengths.rounds + 1):
            for arm in _turns(number, ARMS):
                result = self.folder / f"resnet50_{arm}_{number}.json"
                title = f"ResNet-50 with {ARMS[arm].title}, round {number} of {lengths.rounds}"
                written = [*flags, "--json", result]
                self._train(title, arm, "resnet50", "resnet.train", written, number)
                per_second[arm].append(json.loads(result.read_text())["images_per_second"])
        steps = lengths.resnet_warm_up + lengths.resnet_steps
        return [
            Row("ResNet-50", "images/s", per_second),
            self._allreduce("ResNet-50", "resnet50", steps),
        ]

    def exchange(self) -> Row:
        """Exchange the gradients of EDSR in its published size, with nothing else to do.

        A job measures Horovod, default or tuned by its variables, and interleaved
        with it hvd_ext and a copy.

        Raises:
            BenchmarkError: a job failed.
        """
        of_a_job = {"hvd_ext": "hvd_ext", "none": "copy"}
        ms: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for number in range(1, self.lengths.exchange_rounds + 1):
            for peer in _turns(number, PEERS):
                result = self.folder / f"exchange_{peer}_{number}.json"
                command = [sys.executable, "-m", "benchmarks.gradient_exchange", "--np", RANKS]
                command += ["--model", PUBLISHED, "--rounds", self.lengths.exchanges]
                title = f"Exchange of full-size EDSR with {ARMS[peer].title}"
                title += f", round {number} of {self.lengths.exchange_rounds}"
                environment = ARMS[peer].environment()
                self.stages.run(title, [*command, "--json", result], environment)
                measured = json.loads(result.read_text())
                for arm, name in {peer: "horovod", **of_a_job}.items():
                    ms[arm].append(measured["time_ms"][name]["median"])
        megabytes = measured["message_bytes"] / 1e6
        return Row(f"full-size EDSR, {megabytes:.0f} MB of gradients alone", "ms", ms)

    def evaluate(self) -> dict[str, Any]:
        """Evaluate EDSR by each exchange on photographs that it has not seen, and draw one.

        Returns:
            PSNR in dB, of bicubic and of EDSR.

        Raises:
            BenchmarkError: one does not beat bicubic, or they differ.
        """
        test = self.photographs / "test"
        checkpoints = {arm: self._edsr_folder(arm) / "checkpoint.pt" for arm in JUDGED}
        figures = judge_edsr(self.stages, checkpoints, test)["hvd_ext"]
        original = test / PHOTOGRAPH
        low, high = self.folder / "low.png", self.folder / "edsr.png"
        picture.shrink(original, low, 2)
        trained = ("--checkpoint", checkpoints["hvd_ext"])
        self.stages.python("Upscaling", "edsr.upscale", low, high, *trained)
        psnr_db = figures["images"][str(original)]
        picture.draw(low, high, original, CROP, psnr_db, self.folder / "upscaled.png")
        mean = figures["mean"]
        return {
            "bicubic_psnr_db": mean["bicubic_rgb_db"],
            "edsr_psnr_db": mean["edsr_rgb_db"],
            "psnr_of": {Path(name).name: row for name, row in figures["images"].items()},
        }

    def learn_digits(self) -> float:
        """Train ResNet on digits with each exchange; returns the accuracy on held-out ones.

        Raises:
            BenchmarkError: it is too low, or the exchanges differ.
        """
        digits = self.folder / "digits"
        self.stages.python("Writing digits", "resnet.digits", digits)
        folders = {arm: self.folder / f"digits_{arm}" for arm in JUDGED}
        for arm, output in folders.items():
            options: dict[str, object] = {
                "--train-dir": digits / "train",
                "--val-dir": digits / "val",
                "--log-dir": output,
                "--checkpoint-format": output / "checkpoint-{epoch}.pt",
            }
            title = f"ResNet on digits with {ARMS[arm].title}"
            self._train(title, arm, "digits", "resnet.train", [*DIGITS, *_words(options)], 0)
        return read_digits({arm: output / "log.csv" for arm, output in folders.items()})

    def _train(
        self, title: str, arm: str, model: str, module: str, flags: Sequence[object], number: int
    ) -> None:
        """Run a trainer at RANKS ranks, in round `number` with a recording."""
        command = [*ranks.horovodrun(RANKS), sys.executable, "-m", module, *flags]
        command += ["--exchange", ARMS[arm].exchange]
        if number:
            recording = self._recordings(model, arm) / str(number)
            hvprof_program = Path(sys.executable).with_name("hvprof")
            command = [hvprof_program, "record", "-o", recording, "--", *command]
        self.stages.run(title, command, ARMS[arm].environment())

    def _recordings(self, model: str, arm: str) -> Path:
        return self.folder / "recordings" / f"{model}_{arm}"

    def _allreduce(self, what: str, model: str, steps: int) -> Row:
        """Time in allreduce; and what hvprof says of Horovod and hvd_ext, in files."""
        labels = ("horovod", "hvd_ext")
        stock, ours = (load_side(self._recordings(model, arm)) for arm in labels)
        comparison = hvprof.compare(stock, ours, labels=labels)
        text = self.folder / f"comparison_{model}.txt"
        with text.open("w") as stream:
            render(comparison, Console(file=stream, width=100))
        harness.write_result(text.with_suffix(".json"), comparison.as_json())
        ms = {
            arm: [
                1e3 * hvprof.load(recording).time_s("allreduce") / steps
                for recording in sorted(self._recordings(model, arm).iterdir())
            ]
            for arm in ARMS
        }
        return Row(what, "ms of allreduce a step", ms)


def _turns(number: int, arms: Iterable[str]) -> list[str]:
    """The arms in the order of a round; every other one goes backwards, for drifts' sake."""
    return list(arms)[:: 1 if number % 2 else -1]


def _words(options: Mapping[str, object]) -> list[object]:
    return [word for option in options.items() for word in option]
