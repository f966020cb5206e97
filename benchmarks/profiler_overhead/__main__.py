"""What does recording cost? A call, with it an exchange of ResNet-50's gradients, and a step.

A call: 8 bytes by MPI_Allreduce on one rank, in a loop of C (through mpi4py the call itself
would hide the cost), with and without the recorder, alternating, each in a separate
process; in processor time, which excludes other work of the machine. Its call site is counted,
too. Other calls have one wrapper in common, measured by MPI_Comm_compare. The exchange:
ResNet-50's 161 gradients, one MPI_Allreduce each, on two ranks without the recorder. 161
calls more would be lost in the noise of some 100 ms; so `overhead_percent` is what they cost
by the first measurement, over the second. A step: four regions and its end, on a thread next to
one that communicates, as a training's; without the recorder there is nothing to be called. To
it come the hooks that hand ResNet-50's gradients over, which are timed in one step of 16.

Intervals are of 95 %, by resampling the pairs of samples (Efron, 1979). Memory: by how much
the resident set of a recorded and traced process grows in 10 million calls.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.harness import BenchmarkError, write_result
from benchmarks.harness.shapes import resnet50
from hvd_ext.cli import at_least
from hvd_ext.events import HandingOver, times_hooks
from hvd_ext.system.process import started
from hvprof.recording.load import load
from hvprof.recording.session import LIBRARY
from testbed.ranks import environment
from testbed.timing import summary

_LOOP = Path(__file__).with_name("loop.c")
_TRACE_EVENTS = 100_000
# As the loop takes them: floats of an Allreduce, or a call that moves none.
_MESSAGE, _OTHER = 2, -1
_LABELS = {
    "plain": "a call",
    "recorded": "a call, recorded",
    "traced": "a call, recorded with a trace",
    "other_plain": "another call",
    "other_recorded": "another call, recorded",
    "step": "a step",
    "hooks": "161 hooks of a step",
    "exchange": "ResNet-50's gradients",
}


def main(arguments: Sequence[str]) -> int:
    parser = harness.parser("profiler_overhead", __doc__, "--json overhead.json")
    positive = at_least(1)
    parser.add_argument("--calls", type=positive, default=1_000_000, help="calls of a sample")
    parser.add_argument(
        "--memory-calls", type=positive, default=10**7, help="calls during which memory is watched"
    )
    parser.add_argument("--steps", type=positive, default=100_000, help="steps of a sample")
    parser.add_argument("--samples", type=positive, default=11, help="samples of each kind")
    options = parser.parse_args(arguments)
    if options.worker:
        print(_hooks_us(len(resnet50())))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        programs = _Programs(Path(folder))
        samples = _measure(programs, options.calls, options.steps, options.samples)
        grown_kib = programs.memory_growth_kib(options.memory_calls)
    plain, exchange_us = samples["plain"], statistics.median(samples["exchange"])
    added = {
        name: [after - before for before, after in zip(plain, samples[name], strict=True)]
        for name in ("recorded", "traced")
    }
    added["other"] = [
        after - before
        for before, after in zip(samples["other_plain"], samples["other_recorded"], strict=True)
    ]
    intervals = {name: _interval(values) for name, values in added.items()}
    overhead_us = statistics.median(added["recorded"])
    percent_of = 100 * len(resnet50()) / exchange_us
    result = {
        "overhead_us_per_call": overhead_us,
        "overhead_us_per_call_interval": intervals["recorded"],
        "overhead_percent": overhead_us * percent_of,
        "overhead_percent_interval": [us * percent_of for us in intervals["recorded"]],
        "traced_overhead_us_per_call": statistics.median(added["traced"]),
        "traced_overhead_us_per_call_interval": intervals["traced"],
        "other_overhead_us_per_call": statistics.median(added["other"]),
        "other_overhead_us_per_call_interval": intervals["other"],
        "step_us": statistics.median(samples["step"]),
        "step_us_interval": _interval(samples["step"]),
        "hooks_us": statistics.median(samples["hooks"]),
        "hooks_us_interval": _interval(samples["hooks"]),
        "memory_growth_kib": grown_kib,
        "memory_calls": options.memory_calls,
        "spreads": {f"{name}_us": summary(values) for name, values in samples.items()},
    }
    _print(result)
    if options.json:
        write_result(options.json, result)
    return 0


class _Figures(NamedTuple):
    """Time of a round of the loop, and the growth of the process over all rounds."""

    time_us: float
    processor_us: float
    grown_pages: float


class _Programs:
    """The loop in C, compiled, and the ways in which it is run."""

    def __init__(self, folder: Path) -> None:
        if not LIBRARY.is_file():
            raise BenchmarkError(f"the recorder {LIBRARY} is not built: run make env")
        self._folder, self._program = folder, folder / "loop"
        _run([_tool("mpicc"), "-O2", _LOOP, "-o", self._program])
        self._mpirun = [_tool("mpirun")]
        if "Open MPI" in _run([*self._mpirun, "--version"]):
            root = ["--allow-run-as-root"] * (os.geteuid() == 0)
            self._mpirun += ["--oversubscribe", *root]

    def plain(self, calls: int, message: int = _MESSAGE) -> float:
        """Microseconds of a call that is not recorded."""
        return self._loop(1, calls, [message]).processor_us

    def exchange(self) -> float:
        """Microseconds of an exchange of gradients that is not recorded."""
        return self._loop(2, 3, [math.prod(shape) for shape in resnet50()]).time_us

    def recorded(self, calls: int, trace_events: int = 0, message: int = _MESSAGE) -> float:
        """Microseconds of a call that is recorded."""
        return self._recorded(calls, trace_events, [message]).processor_us

    def step(self, steps: int) -> float:
        """Microseconds that a recorded step takes."""
        return self._recorded(steps, 0, []).processor_us

    def hooks(self) -> float:
        """Microseconds that timing its hooks takes of a step, as a mean."""
        command = [sys.executable, "-m", "benchmarks.profiler_overhead", "--worker"]
        variables = {"LD_PRELOAD": str(LIBRARY), "HVPROF_DIR": str(self._folder)}
        return float(_run(command, **{**environment(), **variables}))

    def memory_growth_kib(self, calls: int) -> float:
        """By how much a recorded and traced process grows while it makes its calls."""
        pages = self._recorded(calls, _TRACE_EVENTS).grown_pages
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024

    def _recorded(
        self, rounds: int, trace_events: int, messages: Sequence[int] = (_MESSAGE,)
    ) -> _Figures:
        with tempfile.TemporaryDirectory(dir=self._folder) as recording:
            figures = self._loop(
                1,
                rounds,
                messages,
                LD_PRELOAD=str(LIBRARY),
                HVPROF_DIR=recording,
                HVPROF_TRACE=str(trace_events),
            )
            rank = load(recording).ranks[0]
            counted = sum(cell.calls for cell in rank.cells) if messages else rank.step_count
        if counted < rounds:
            raise BenchmarkError(f"{counted} of {rounds} were recorded: build it for this MPI")
        return figures

    def _loop(self, ranks: int, rounds: int, messages: Sequence[int], **variables: str) -> _Figures:
        command = [*self._mpirun, "-np", ranks, self._program, rounds, *messages]
        return _Figures(*map(float, _run(command, **variables).split()))


def _measure(programs: _Programs, calls: int, steps: int, samples: int) -> dict[str, list[float]]:
    """Samples of each kind, interleaved, so that a disturbance affects all."""
    found: dict[str, list[float]] = defaultdict(list)
    console = Console(stderr=True)
    for sample in range(1, samples + 1):
        found["plain"].append(programs.plain(calls))
        found["recorded"].append(programs.recorded(calls))
        found["traced"].append(programs.recorded(calls, _TRACE_EVENTS))
        found["other_plain"].append(programs.plain(calls, _OTHER))
        found["other_recorded"].append(programs.recorded(calls, message=_OTHER))
        found["step"].append(programs.step(steps))
        found["hooks"].append(programs.hooks())
        found["exchange"].append(programs.exchange())
        console.print(f"sample {sample} of {samples}", style="dim")
    return found


def _hooks_us(gradients: int) -> float:
    """Cost of timing hooks that do nothing, in microseconds of a step."""

    def hook(timed: bool) -> None:
        if timed:
            with HandingOver():
                pass

    steps = 50 * 16
    timed = [times_hooks(step) for step in range(steps)]
    if not any(timed):
        raise BenchmarkError("hooks are not timed: the recorder was not loaded")
    spent_s = []
    for flags in (timed, [False] * steps):
        began_s = time.process_time()
        for flag in flags:
            for _ in range(gradients):
                hook(flag)
        spent_s.append(time.process_time() - began_s)
    return 1e6 * (spent_s[0] - spent_s[1]) / steps


def _interval(values: Sequence[float]) -> list[float]:
    """Where the median lies, at 95 %."""
    drawn = np.random.default_rng(1).choice(values, (10_000, len(values)))
    return [float(q) for q in np.quantile(np.median(drawn, axis=1), (0.025, 0.975))]


def _tool(name: str) -> str:
    """The program of this environment's MPI, or else the one on PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise BenchmarkError(f"{name} is not on PATH: run make env, or load your MPI's module")
    return found


def _run(command: Sequence[object], **variables: str) -> str:
    words = [str(word) for word in command]
    pipe = subprocess.PIPE
    with started(words, env={**os.environ, **variables}, stdout=pipe, stderr=pipe) as process:
        output, complaint = process.communicate()
    if process.returncode:
        reason = (complaint.strip().splitlines() or [f"exit code {process.returncode}"])[0]
        raise BenchmarkError(f"{Path(words[0]).name} failed: {reason}")
    return output


def _print(result: dict[str, Any]) -> None:
    table = Table(title="Cost of recording (median and middle half)", title_justify="left")
    for name in ("", "us", "from", "to"):
        table.add_column(name, justify="right" if name else "left")
    for name, spread in result["spreads"].items():
        figures = (f"{spread[key]:.3f}" for key in ("median", "low", "high"))
        table.add_row(_LABELS[name.removesuffix("_us")], *figures)
    console = Console()
    console.print(table)
    for words, name in (
        ("recording adds {} us to a call", "overhead_us_per_call"),
        ("recording with a trace adds {} us to a call", "traced_overhead_us_per_call"),
        ("recording adds {} us to another call", "other_overhead_us_per_call"),
        ("recording takes {} us of a step", "step_us"),
        ("timing the hooks of 161 gradients takes {} us more of it", "hooks_us"),
        (
            f"recording takes {{}} % of an exchange of ResNet-50's {len(resnet50())} gradients",
            "overhead_percent",
        ),
    ):
        low, high = result[f"{name}_interval"]
        console.print(words.format(f"{result[name]:.4f} ({low:.4f} to {high:.4f})"), soft_wrap=True)
    console.print(
        f"in {result['memory_calls']} recorded and traced calls the process grew by "
        f"{result['memory_growth_kib']:.0f} KiB"
    )


if __name__ == "__main__":
    harness.run(main, "profiler_overhead")
