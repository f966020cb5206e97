"""The line that a process of this machine runs: py-spy reads that of Python, gdb others'."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hvprof.live.stacks.c import c_line_of
from hvprof.live.standing import Process, Standing
from hvprof.printable import printable

# Only a process on this machine has one of these states.
_READABLE = frozenset({Process.RUNS, Process.SLEEPS, Process.ON_DISK})
_MOST_RANKS = 8
_PATIENCE_S = 10.0
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<")


def with_lines(standings: Sequence[Standing], ranks: Collection[int]) -> tuple[Standing, ...]:
    """The standings, with the line that each of the ranks runs, where it can be read.

    Args:
        standings: of all ranks.
        ranks: those that matter; the first 8 of them are asked.
    """
    program = _program()
    asked = {
        one.rank
        for one in standings
        if one.rank in ranks and one.process in _READABLE and one.pid and not one.by_signs
    }
    few = sorted(asked)[:_MOST_RANKS]
    return tuple(
        replace(one, line=_line_of(program, one.pid) or _c_line_of(one)) if one.rank in few else one
        for one in standings
    )


def _program() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def _c_line_of(one: Standing) -> str:
    """The line of a process that sleeps outside of MPI; "" for one that runs, or is in a call."""
    inside = any(thread.call for thread in one.threads)
    return "" if inside or one.process is not Process.SLEEPS else c_line_of(one.pid)


def _line_of(program: str, pid: int) -> str:
    if not program:
        return ""
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=True)
        return line_in(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        # No Python, or one that may not be read.
        return ""


def line_in(threads: Sequence[dict[str, Any]]) -> str:
    """The innermost line of the main thread outside of libraries: "train.py:118 in augment".

    Args:
        threads: as `py-spy dump --json` prints them.
    """
    main = next((one for one in threads if one["thread_name"] == "MainThread"), threads[0])
    frames = main["frames"]
    own = [one for one in frames if not any(part in one["filename"] for part in _LIBRARIES)]
    frame = (own or frames)[0]
    return printable(f"{Path(frame['filename']).name}:{frame['line']} in {frame['name']}")
