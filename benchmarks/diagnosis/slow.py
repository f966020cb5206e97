"""Ranks that take steps, of which one may be slow, and what hvprof says of them.

A rank that is slow blocks nobody for long: hvprof watch is to name it, and the report after it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.kinds import OfMPI
from benchmarks.harness import BenchmarkError
from hvd_ext.system.process import dying_with_parent, end_tree
from testbed import ranks

SLOWED = "shares its core with a busy program"
HELD_BACK = "is held back by a CPU quota"
EVEN = "takes even steps"
SLOW_RANK = 1
# Cores of the quota. A rank that computes and polls wants a whole one.
QUOTA_CORES = 0.4
_BUSY_PROCESSES = 4
# On a link of 0.5 Gbit/s an exchange between hosts takes some 30 ms.
_LARGE_BYTES = 1 << 20
# What watch and the report say of a slow rank, of a quota and of a link.
_SAID = "share its cores"
_TITLES = {"core": "rank {rank} ", "quota": "CPU quota of", "link": "host{rank}"}
# CPU time that a rank computes for in a step, and for how long the job runs.
_STEP_S, _RUNS_S = 0.008, 12.0
_WARM_STEPS = 20
_EVERY_S = 2.0
_PATIENCE_S = 120.0


def take_steps(name: str, job: OfMPI, mark: Path, *, on_hosts: bool) -> None:
    """Be a rank that computes, meets the others, and marks a step, again and again.

    Args:
        name: SLOWED, HELD_BACK, EVEN, or a fault of a link.
        job: this rank.
        mark: an empty file, made when the busy program begins or the quota starts to count. Next
            to it, the link "group" points to the control group that has the quota.
        on_hosts: it exchanges more, so that links are used.
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
    if on_hosts:
        job.grow(_LARGE_BYTES)
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
                elif name == HELD_BACK:
                    (mark.with_name("group") / "cgroup.procs").write_text(str(os.getpid()))
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
        kind: "core" where a rank shares its cores, or the kind of a condition of its machine; ""
            where nothing is the matter.
        ranks: those that it is the matter with.
        sentence: that in the words of hvprof watch.
        noticed_s: from the mark to the reading that says it; None without one.
        report_agrees: the report of the job says the same.
    """

    kind: str = ""
    ranks: tuple[int, ...] = ()
    sentence: str = ""
    noticed_s: float | None = None
    report_agrees: bool = False


def verdict(job: subprocess.Popen[bytes], folder: Path, mark: Path) -> Verdict:
    """The first cause of slowness that hvprof watch gives, and whether the report agrees."""
    environment = ranks.environment()
    _until(mark, job)
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
    began_s = mark.stat().st_mtime
    for line in done.stdout.splitlines():
        reading = json.loads(line)
        kind, on, sentence = _said(reading)
        if kind:
            break
    else:
        return Verdict()
    report = [sys.executable, "-m", "hvprof", "report", str(folder), "--json"]
    text = subprocess.run(report, env=environment, capture_output=True, text=True, check=True)
    title = _TITLES.get(kind, kind).format(rank=on[-1])
    agrees = any(
        title in one["title"] and (kind != "core" or "waits for a core" in one["evidence"])
        for one in json.loads(text.stdout)["advice"]
    )
    return Verdict(kind, on, sentence, reading["unix_s"] - began_s, agrees)


def _said(reading: Mapping[str, Any]) -> tuple[str, tuple[int, ...], str]:
    """The cause of slowness in a reading: its kind, ranks and sentence."""
    for one in reading["conditions"]:
        return one["kind"], tuple(one["ranks"]), one["what"]
    why = reading["slowest_why"]
    return ("core", (reading["slowest"],), why) if _SAID in why else ("", (), "")


def _until(mark: Path, job: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while not mark.exists():
        if job.poll() is not None or time.monotonic() > end_s:
            raise BenchmarkError("the job took no steps: run its command to see why")
        time.sleep(0.1)
