"""Ranks that take steps, of which one may be slow, and what hvprof says of them.

A rank that is slow blocks nobody for long: hvprof watch is to name it, and the report after it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.diagnosis.kinds import OfMPI
from benchmarks.harness import BenchmarkError
from hvd_ext.system.process import dying_with_parent, end_tree
from testbed import ranks

SLOWED = "shares its core with a busy program"
EVEN = "takes even steps"
# The slow rank of a job, and words for its reason.
SLOW_RANK, SAID = 1, "share its cores"
_BUSY_PROCESSES = 4
# CPU time that a rank computes for in a step, and for how long the job runs.
_STEP_S, _RUNS_S = 0.008, 12.0
_WARM_STEPS = 20
_EVERY_S = 2.0
_PATIENCE_S = 120.0


def take_steps(name: str, job: OfMPI, mark: Path) -> None:
    """Be a rank that computes, meets the others, and marks a step, again and again.

    Args:
        name: SLOWED or EVEN.
        job: this rank.
        mark: an empty file, made when the busy program begins.
    """
    import hvprof

    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchmarkError(f"{name!r} needs two cores: run it on a machine that has them")
    slow = job.rank == SLOW_RANK
    core = cores[job.rank % len(cores)]
    if name == SLOWED:
        # The busy program's core is that of one rank alone.
        core = cores[-1] if slow else cores[job.rank % (len(cores) - 1)]
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
    _come_first()
    end_s = time.monotonic() + _RUNS_S
    steps = 0
    with ExitStack() as stack:
        while job.agree(time.monotonic() < end_s):
            with hvprof.region("forward"):
                until_s = time.thread_time() + _STEP_S
                while time.thread_time() < until_s:
                    pass
            job.meet()
            hvprof.step()
            steps += 1
            if steps == _WARM_STEPS and slow:
                if name == SLOWED:
                    for _ in range(_BUSY_PROCESSES):
                        stack.enter_context(_busy_program())
                mark.touch()


def _come_first() -> None:
    """Have programs of other sessions wait for this one's, where root may say so.

    The busy program is to be the only one that slows a rank.
    """
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("-20")


@contextmanager
def _busy_program() -> Iterator[None]:
    """A program on this rank's core, until the block ends."""
    program = [sys.executable, "-c", "while True: pass"]
    process = subprocess.Popen(program, preexec_fn=dying_with_parent())
    try:
        yield
    finally:
        end_tree(process)


@dataclass(frozen=True)
class Verdict:
    """A verdict of hvprof on a job.

    Attributes:
        rank: the slowest one; None where the ranks are even, or no reason is given.
        sentence: the reason, of hvprof watch.
        noticed_s: from the mark to the reading that gives it; None without one.
        report_agrees: the report of the job names the same rank for the same reason.
    """

    rank: int | None
    sentence: str
    noticed_s: float | None
    report_agrees: bool


def verdict(job: subprocess.Popen[bytes], folder: Path, mark: Path) -> Verdict:
    """The first reading's that names a rank whose core is shared, or else the last one's."""
    environment = ranks.environment()
    _until(mark, job)
    began_s = mark.stat().st_mtime
    watch = [sys.executable, "-m", "hvprof", "watch", str(folder), "--json"]
    done = subprocess.run(
        [*watch, "--every", str(_EVERY_S)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=True,
        start_new_session=True,
        preexec_fn=_come_first,
    )
    job.wait(_PATIENCE_S)
    readings = [json.loads(line) for line in done.stdout.splitlines()]
    named = [one for one in readings if SAID in one["slowest_why"]]
    said = named[:1] or readings[-1:]
    if not said:
        return Verdict(None, "", None, report_agrees=False)
    rank, why = said[0]["slowest"], said[0]["slowest_why"]
    report = [sys.executable, "-m", "hvprof", "report", str(folder), "--json"]
    text = subprocess.run(report, env=environment, capture_output=True, text=True, check=True)
    advice = json.loads(text.stdout)["advice"]
    agrees = any(
        f"rank {rank}" in one["title"] and "waits for a core" in one["evidence"] for one in advice
    )
    noticed_s = said[0]["unix_s"] - began_s if named else None
    return Verdict(rank if why else None, why, noticed_s, agrees)


def _until(mark: Path, job: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while not mark.exists():
        if job.poll() is not None or time.monotonic() > end_s:
            raise BenchmarkError("the job took no steps: run its command to see why")
        time.sleep(0.1)
