"""The line that a process of this machine runs, by py-spy for Python, otherwise by gdb."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvd_ext.system.process import descendants
from hvprof.live.stacks.c import c_line_of, sleeps_in
from hvprof.live.standing import Process, Standing
from hvprof.printable import printable

# Only a process on this machine has one of these states.
_READABLE = frozenset({Process.RUNS, Process.SLEEPS, Process.ON_DISK})
_MOST_RANKS = 8
_PATIENCE_S = 10.0
_DATA_LOADER = "torch/utils/data/dataloader.py"
_MOST_WORKERS = 8
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<")


def with_lines(standings: Sequence[Standing], ranks: Collection[int]) -> tuple[Standing, ...]:
    """Return the standings, with the line of each of these ranks, if it can be read.

    Args:
        standings: standings of all ranks.
        ranks: the ranks of interest; the first 8 of them are read.
    """
    program = _program()
    asked = {
        one.rank
        for one in standings
        if one.rank in ranks and one.process in _READABLE and one.pid and not one.by_signs
    }
    few = sorted(asked)[:_MOST_RANKS]
    return tuple(
        replace(one, line=_place_of(program, one)) if one.rank in few else one for one in standings
    )


def _program() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def _place_of(program: str, one: Standing) -> str:
    """Return the line, and the system call of a process that sleeps outside of MPI."""
    sleeps = one.process is Process.SLEEPS and not any(thread.call for thread in one.threads)
    # gdb stops the process, which then sleeps somewhere else.
    how = sleeps_in(one.pid) if sleeps else ""
    threads = _threads_of(program, one.pid)
    if threads:
        line = line_in(threads)
        if waits_for_worker(threads):
            line += _worker_of(program, one.pid)
    else:
        line = c_line_of(one.pid) if sleeps else ""
    return ", ".join(filter(None, [line, how]))


def waits_for_worker(threads: Sequence[dict[str, Any]]) -> bool:
    """Whether the main thread takes the next batch from a DataLoader of torch."""
    return any(_DATA_LOADER in frame["filename"] for frame in _main(threads)["frames"])


def _worker_of(program: str, pid: int) -> str:
    """Describe the first worker process that runs a line of the program."""
    for child in descendants(pid)[:_MOST_WORKERS]:
        threads = _threads_of(program, child)
        if threads and _own(threads):
            return f", waits for its worker process {child} at {line_in(threads)}"
    return ""


def _threads_of(program: str, pid: int) -> list[dict[str, Any]]:
    """Return the stacks that py-spy prints; none if the process cannot be read or is not Python."""
    if not program:
        return []
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=True)
        threads: list[dict[str, Any]] = json.loads(done.stdout)
        line_in(threads)
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return []
    return threads


def line_in(threads: Sequence[dict[str, Any]]) -> str:
    """Return the main thread's innermost line outside of libraries: "train.py:118 in augment".

    Args:
        threads: output of `py-spy dump --json`.
    """
    frame = (_own(threads) or _main(threads)["frames"])[0]
    return printable(f"{Path(frame['filename']).name}:{frame['line']} in {frame['name']}")


def _main(threads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return next((one for one in threads if one["thread_name"] == "MainThread"), threads[0])


def _own(threads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the frames of the main thread outside of libraries, the innermost first."""
    frames: list[dict[str, Any]] = _main(threads)["frames"]
    return [one for one in frames if not any(part in one["filename"] for part in _LIBRARIES)]
