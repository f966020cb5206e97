"""What does recording cost? A call, and with it an exchange of ResNet-50's gradients.

A call: 8 bytes by MPI_Allreduce on one rank, in a loop of C (through mpi4py the call itself
would hide what is measured), with and without the recorder in turns, each in a process of
its own. The exchange: ResNet-50's 161 gradients, one MPI_Allreduce each, on two ranks
without the recorder. 161 calls more would be lost in the noise of some 100 ms; so
`overhead_percent` is what they cost by the first measurement, over the second.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import BenchmarkError, summary, write_json
from benchmarks.shapes import resnet50
from hvd_ext import errors
from hvprof.record import LIBRARY

# Arguments: rounds, then the number of floats of each message of a round.
_LOOP = """
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
static void exchange(float *buffer, int messages, char **counts)
{
    for (int i = 0; i < messages; i++)
        MPI_Allreduce(MPI_IN_PLACE, buffer, atoi(counts[i]), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
int main(int argc, char **argv)
{
    long rounds = atol(argv[1]);
    int rank;
    float *buffer = calloc(16 << 20, sizeof *buffer);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (long i = 0; i <= rounds / 10; i++)
        exchange(buffer, argc - 2, argv + 2);
    double start = MPI_Wtime();
    for (long i = 0; i < rounds; i++)
        exchange(buffer, argc - 2, argv + 2);
    if (rank == 0)
        printf("%.17g\\n", (MPI_Wtime() - start) / rounds * 1e6);
    MPI_Finalize();
    return 0;
}
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table, and write the figures where --json says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.profiler_overhead",
        description="Measure what recording adds to a call and to an exchange of gradients.",
        epilog="example: python -m benchmarks.profiler_overhead --json overhead.json",
    )
    parser.add_argument("--calls", type=int, default=1_000_000, help="calls of a sample")
    parser.add_argument("--samples", type=int, default=11, help="samples of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        samples = _measure(Path(folder), options.calls, options.samples)
    added = [after - before for before, after in zip(samples[0], samples[1], strict=True)]
    names = ("plain_us_per_call", "recorded_us_per_call", "resnet50_exchange_us")
    spreads = {
        **{name: summary(values) for name, values in zip(names, samples, strict=True)},
        "added_us_per_call": summary(added),
    }
    overhead_us = spreads["added_us_per_call"]["median"]
    exchange_us = spreads["resnet50_exchange_us"]["median"]
    percent = 100 * overhead_us * len(resnet50()) / exchange_us
    result = {
        "overhead_us_per_call": overhead_us,
        "overhead_percent": percent,
        "spreads": spreads,
    }
    _print(spreads, percent)
    if options.json:
        write_json(options.json, result)
    return 0


def _measure(folder: Path, calls: int, samples: int) -> tuple[list[float], ...]:
    """Microseconds of a call without and with the recorder, and of the exchange."""
    if not LIBRARY.is_file():
        raise BenchmarkError(f"the recorder {LIBRARY} is not built: run make env")
    source, program = folder / "loop.c", folder / "loop"
    source.write_text(_LOOP)
    _run([_tool("mpicc"), "-O2", source, "-o", program])
    mpirun = [_tool("mpirun")]
    if "Open MPI" in _run([*mpirun, "--version"]):
        mpirun += ["--oversubscribe", *(["--allow-run-as-root"] * (os.geteuid() == 0))]
    one = [*mpirun, "-np", 1, program, calls, 2]
    exchange = [*mpirun, "-np", 2, program, 5, *map(math.prod, resnet50())]
    plain, recorded, exchanged = [], [], []
    for sample in range(samples):
        recording = folder / f"recording{sample}"
        recording.mkdir()
        plain.append(float(_run(one)))
        recorded.append(float(_run(one, LD_PRELOAD=str(LIBRARY), HVPROF_DIR=str(recording))))
        if not list(recording.glob("rank-*")):
            raise BenchmarkError("the recorder recorded nothing: build it with the mpicc in use")
        exchanged.append(float(_run(exchange)))
    return plain, recorded, exchanged


def _tool(name: str) -> str:
    """The program of this environment's MPI, or else the one on PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise BenchmarkError(f"{name} is not on PATH: run make env, or load your MPI's module")
    return found


def _run(command: Sequence[object], **variables: str) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise BenchmarkError(f"{Path(words[0]).name} failed: {reason}")
    return done.stdout


def _print(spreads: dict[str, dict[str, float]], percent: float) -> None:
    table = Table(title="Cost of recording (median and middle half)", title_justify="left")
    for name in ("", "us", "from", "to"):
        table.add_column(name, justify="right" if name else "left")
    for name, spread in spreads.items():
        figures = (f"{spread[key]:.3f}" for key in ("median", "low", "high"))
        table.add_row(name.replace("_us", "").replace("_", " "), *figures)
    console = Console()
    console.print(table)
    console.print(
        f"{len(resnet50())} calls in an exchange of ResNet-50's gradients: "
        f"recording takes {percent:.4f} % of it",
        soft_wrap=True,
    )


if __name__ == "__main__":
    errors.run(main, "profiler_overhead")
