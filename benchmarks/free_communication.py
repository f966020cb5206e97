"""Is what hvprof says of free communication true? Trainings with an exchange, and without any.

Each training runs at 2 ranks with stock Horovod, with Horovod whose Open MPI yields the core
where it waits, with hvd_ext, and with no exchange at all, and is recorded. The four start one
after the other, and then take turns of some seconds until the first has ended, so that a slow
minute of the machine hits all of them: only steps of these turns count. A recording predicts the
gain of its steps if communication were free; it is compared with their gain without it: both by the
medians of the steps, over `--rounds` launches.

An interval is from the least to the most of the rounds; that of a prediction has each round's own
interval in it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import hvprof
from benchmarks import harness
from benchmarks.harness import BenchmarkError
from hvprof.model import RankRecording, Step
from testbed import ranks, turns

RANKS = 2
# By then a training is past its first steps, and hvd_ext has found its layout of buckets.
_START_S = 10.0
_TURN_S = 3.0
_END_S = 600.0
_NONE = "none"
Turns = list[tuple[float, float]]  # on the monotonic clock


@dataclass(frozen=True)
class Exchange:
    """A way to exchange gradients: the trainers' --exchange, and variables to set."""

    name: str
    variables: Mapping[str, str]


EXCHANGES = {
    _NONE: Exchange("none", {}),
    "horovod": Exchange("horovod", {"OMPI_MCA_mpi_yield_when_idle": "0"}),
    "horovod_yielding": Exchange("horovod", {"OMPI_MCA_mpi_yield_when_idle": "1"}),
    "hvd_ext": Exchange("hvd_ext", {}),
}
# Module and flags; --output and --exchange are added.
_RESNET50 = ["resnet.train", "--synthetic", "--batch-size", "4", "--image-size", "64"]
_RESNET50 += ["--num-warmup-batches", "20", "--num-batches-per-iter", "5", "--num-iters", "20"]
_EDSR = ["edsr.train", "--synthetic", "--scale", "2", "--blocks", "4", "--features", "32"]
_EDSR += ["--patch", "24", "--batch-size", "4", "--steps", "1500", "--output"]
_MESH = ["mesh.train", "--synthetic", "--samples", "64", "--held-out", "0", "--size", "128"]
_MESH += ["--steps", "1500", "--output"]
MODELS = {"resnet50": _RESNET50, "edsr_demo": _EDSR, "mesh": _MESH}


def main(arguments: Sequence[str]) -> int:
    parser = harness.parser("free_communication", __doc__, "--json free.json", rounds=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the recordings there (a new folder)"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        cases = [
            case
            for model in options.models
            for case in _cases(model, _record(folder / model, model, options.rounds))
        ]
    _print(cases)
    if options.json:
        harness.write_result(options.json, {"ranks": RANKS, "cases": cases})
    return 0


def _record(folder: Path, model: str, rounds: int) -> dict[str, list[hvprof.Recording]]:
    """Recordings of every exchange, of their interleaved steps."""
    recordings: dict[str, list[hvprof.Recording]] = defaultdict(list)
    console = Console(stderr=True)
    for number in range(1, rounds + 1):
        run = folder / str(number)
        for name, taken in _train(run, model).items():
            recording = _within(hvprof.load(run / name), taken)
            recordings[name].append(recording)
            console.print(
                f"{model}, round {number} of {rounds}, {name}: {1e3 * _step_s(recording):.1f} ms, "
                f"{min(len(rank.steps) for rank in recording.ranks)} steps",
                style="dim",
            )
    return recordings


def _train(folder: Path, model: str) -> dict[str, Turns]:
    """Have a training of each exchange recorded; returns their turns."""
    module, *flags = MODELS[model]
    taken: dict[str, Turns] = defaultdict(list)
    with tempfile.TemporaryDirectory() as outputs, ExitStack() as stack:
        jobs: dict[str, turns.Job] = {}
        for name, exchange in EXCHANGES.items():
            output = [f"{outputs}/{name}"] if flags[-1] == "--output" else []
            command = [sys.executable, "-m", "hvprof", "record", "-o", str(folder / name), "--"]
            command += ranks.horovodrun(RANKS)
            command += [sys.executable, "-m", module, *flags, *output, "--threads", "1"]
            command += ["--exchange", exchange.name]
            environment = ranks.environment(exchange.variables)
            job = turns.job(f"{model} with {name}", command, environment, RANKS)
            jobs[name] = stack.enter_context(job)
            if not jobs[name].go_on_for(_START_S):
                raise BenchmarkError(f"{model} with {name} ended before its first turn")
        while len(running := _turn_of_each(jobs, taken)) == len(jobs):
            pass
        for name in running:
            if jobs[name].go_on_for(_END_S):
                raise BenchmarkError(f"{model} with {name} did not end in {_END_S:g} s")
    return taken


def _turn_of_each(jobs: Mapping[str, turns.Job], taken: dict[str, Turns]) -> list[str]:
    """Have each job take its turn, and note it; returns those that have not ended by then."""
    running = []
    for name, job in jobs.items():
        began_s = time.monotonic()
        if job.go_on_for(_TURN_S):
            running.append(name)
        taken[name].append((began_s, time.monotonic()))
    return running


def _within(recording: hvprof.Recording, taken: Turns) -> hvprof.Recording:
    """The recording, of the steps alone that began and ended in one turn."""
    return replace(recording, ranks=tuple(_rank_within(rank, taken) for rank in recording.ranks))


def _rank_within(rank: RankRecording, taken: Turns) -> RankRecording:
    steps = tuple(
        step
        for step in rank.steps
        if any(
            began_s <= rank.start_clock_s + step.start_s
            and rank.start_clock_s + step.start_s + step.time_s <= ended_s
            for began_s, ended_s in taken
        )
    )
    if not steps:
        raise BenchmarkError(f"rank {rank.rank} of {rank.size} took no step in its turns")
    return replace(rank, steps=steps, step_count=len(steps), all_steps=_sum(steps))


def _sum(steps: Sequence[Step]) -> Step:
    sums: dict[str, Any] = {}
    for one in fields(Step):
        values = [getattr(step, one.name) for step in steps]
        sums[one.name] = None if None in values else sum(values)
    return Step(**{**sums, "index": len(steps), "start_s": steps[0].start_s})


def _step_s(recording: hvprof.Recording) -> float:
    """Median of a rank's steps, as a mean over the ranks."""
    return statistics.fmean(
        statistics.median(step.time_s for step in rank.steps) for rank in recording.ranks
    )


def _cases(model: str, recordings: Mapping[str, list[hvprof.Recording]]) -> list[dict[str, Any]]:
    return [
        _case(model, name, found, recordings[_NONE])
        for name, found in recordings.items()
        if name != _NONE
    ]


def _case(
    model: str, name: str, found: list[hvprof.Recording], free: list[hvprof.Recording]
) -> dict[str, Any]:
    predictions = [hvprof.Analysis(recording).free_speedup for recording in found]
    known = [one for one in predictions if one is not None]
    if len(known) < len(found):
        raise BenchmarkError(f"{model} with {name}: a recording has no steps")
    measured = [_step_s(a) / _step_s(b) for a, b in zip(found, free, strict=True)]
    predicted = statistics.median(one.speedup for one in known)
    parts = hvprof.Analysis(found[-1]).step_parts
    return {
        "model": model,
        "exchange": name,
        "predicted_speedup": predicted,
        "predicted_interval": [min(one.low for one in known), max(one.high for one in known)],
        "measured_speedup": statistics.median(measured),
        "measured_interval": [min(measured), max(measured)],
        "predicted_over_measured": predicted / statistics.median(measured),
        "step_time_s": statistics.median(map(_step_s, found)),
        "step_time_without_exchange_s": statistics.median(map(_step_s, free)),
        "exposed_s": parts.exposed_s if parts else None,
        "slowed_s": parts.slowed_s if parts else None,
    }


def _print(cases: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title=f"If communication were free, {RANKS} ranks", title_justify="left")
    for name in ("model", "exchange", "hvprof says", "it is", "said over true"):
        left = name in ("model", "exchange")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for case in cases:
        said, true = (
            "{:.2f} x ({:.2f} to {:.2f})".format(case[f"{name}_speedup"], *case[f"{name}_interval"])
            for name in ("predicted", "measured")
        )
        ratio = f"{case['predicted_over_measured']:.2f}"
        table.add_row(case["model"], case["exchange"], said, true, ratio)
    Console().print(table)


if __name__ == "__main__":
    harness.run(main, "free_communication")
