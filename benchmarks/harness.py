"""What every benchmark does alike: start its ranks, take medians, describe the machine."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hvd_ext.errors import HvdExtError

TIMED_OUT = 124  # as timeout(1) says it
_RESULT = "HVD_EXT_BENCHMARK_RESULT"


class BenchmarkError(HvdExtError):
    """A benchmark could not be run to its end, or a result was wrong."""


def parser(name: str, doc: str | None, example: str, rounds: int) -> argparse.ArgumentParser:
    """A benchmark's command line, to which it adds its own flags.

    Has --rounds and --json, and --worker, which `launch` gives to the ranks.

    Args:
        name: of the module.
        doc: of the module; its first line is shown.
        example: flags worth trying.
        rounds: timed unless told otherwise.
    """
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=(doc or "").partition("\n")[0],
        epilog=f"example: python -m benchmarks.{name} {example}",
    )
    made.add_argument("--rounds", type=at_least(1), default=rounds, help=f"timed ones ({rounds})")
    made.add_argument("--json", type=Path, metavar="F", help="write the result there")
    made.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return made


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add the flags of benchmarks on emulated hosts."""
    parser.add_argument("--hosts", type=at_least(2), default=2, help="emulated hosts (2)")
    parser.add_argument("--ranks-per-host", type=at_least(1), default=2, metavar="R", help="(2)")
    parser.add_argument("--gbit", type=_speed, default=2.0, help="Gbit/s of a host's link (2)")


def _speed(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: a whole number that is not below `least`."""

    def whole_number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= {least}")
        return int(text)

    return whole_number


def launch(
    module: str,
    ranks: int,
    arguments: Sequence[str],
    timeout_s: float = 900,
    start: Sequence[str] | None = None,
    variables: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Any:
    """Run `python -m module --worker ARGUMENTS` under horovodrun; return rank 0's `report`.

    Every rank computes with one thread.

    Args:
        module: the benchmark.
        ranks: how many, on this machine.
        arguments: of the benchmark.
        timeout_s: after which it has failed.
        start: a command line to start the ranks with, in place of horovodrun's.
        variables: environment variables to set.
        python: the interpreter of the ranks; the programs beside it come first.

    Raises:
        BenchmarkError: the run failed; its last lines are in the message.
    """
    bin_dir = Path(python).parent
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        environment = {
            **os.environ,
            _RESULT: str(result),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}",
            **(variables or {}),
        }
        if ranks > (os.cpu_count() or 1):
            # Told that it has a slot for every rank, Open MPI spins while it waits, which
            # takes the cores from ranks that share them. mpirun would see to this.
            environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
        horovodrun = [str(bin_dir / "horovodrun"), "-np", str(ranks), "-H", f"localhost:{ranks}"]
        command = [*(start or horovodrun), python, "-m", module, "--worker", *arguments]
        done = run_to_end(command, environment, timeout_s)
        if done.returncode != 0 or not result.exists():
            tail = "\n".join(done.stdout.splitlines()[-25:])
            outcome = f"failed with exit code {done.returncode}"
            if done.returncode == TIMED_OUT:
                outcome = f"took more than {timeout_s:g} s"
            raise BenchmarkError(f"{module} {outcome}:\n{tail}")
        return json.loads(result.read_text())


def run_to_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a launcher in a folder; both its streams are in `stdout`. Nothing of it outlives this.

    What is not done in time is killed, and TIMED_OUT is its code; ranks say first at which
    line they are.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**environment, "PYTHONFAULTHANDLER": "1"},
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(command, process.returncode, output)
    except subprocess.TimeoutExpired:
        pass
    # A launcher's ranks are in process groups of their own; it passes on what they say.
    launcher = psutil.Process(process.pid)
    family = [launcher, *launcher.children(recursive=True)]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            if not member.children() and member.name().startswith("python"):
                member.send_signal(signal.SIGABRT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    output, _ = process.communicate()
    return subprocess.CompletedProcess(command, TIMED_OUT, output)


def report(data: Any) -> None:
    """Hand a worker's result to the process that launched it (rank 0 only)."""
    Path(os.environ[_RESULT]).write_text(json.dumps(data))


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a benchmark's result with the machine and the date, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps({**data, "machine": machine()}, indent=2) + "\n")
    temporary.replace(path)


def machine() -> dict[str, Any]:
    """What a figure depends on and a reader cannot see."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "date": date.today().isoformat(),
    }


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median and the middle half of a sample."""
    low, median, high = (float(q) for q in np.quantile(samples, (0.25, 0.5, 0.75)))
    return {"median": median, "low": low, "high": high, "n": len(samples)}


def interleave(
    contenders: dict[str, Callable[[], None]],
    rounds: int,
    timed: Callable[[Callable[[], None]], float],
    warm_up: int = 3,
) -> dict[str, list[float]]:
    """Time every contender once a round, so that what disturbs one disturbs all."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(warm_up + rounds):
        for name, call in contenders.items():
            time_s = timed(call)
            if number >= warm_up:
                samples[name].append(time_s)
    return samples


def ratio(peer: Sequence[float], ours: Sequence[float]) -> float:
    """How many times as fast as the peer we are, by medians."""
    return statistics.median(peer) / statistics.median(ours)
