"""Use of the machine by this process: time on cores by thread, and memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

# Of each thread: ms on a core, ms that it was ready and had none, minor and major page
# faults, and how often it was taken off its core.
Usage = dict[str, dict[str, float]]


def by_thread(names: Mapping[int, str]) -> Usage:
    """Time used by each thread since it began.

    Args:
        names: of threads that Python does not know, by their ids. Those that it does have
            the names that it gives them; the first is "training", all others are "other".
    """
    known = {thread.native_id or 0: thread.name for thread in threading.enumerate()}
    known.update(names)
    known[os.getpid()] = "training"
    usage: Usage = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            figures = _of(task)
        except OSError:  # the thread has ended
            continue
        total = usage.setdefault(known.get(int(task.name), "other"), {})
        for figure, value in figures.items():
            total[figure] = total.get(figure, 0) + value
    return usage


def threads() -> set[int]:
    """The ids of this process's threads."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def since(before: Usage, now: Usage) -> Usage:
    """Time used between two calls of `by_thread`."""
    return {
        name: {figure: value - before.get(name, {}).get(figure, 0) for figure, value in of.items()}
        for name, of in now.items()
    }


def _of(task: Path) -> dict[str, float]:
    on_core_ns, waiting_ns, _ = (task / "schedstat").read_text().split()
    # The name, in brackets, may hold anything.
    stat = (task / "stat").read_text(errors="replace").rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
    return {
        "cpu_ms": int(on_core_ns) / 1e6,
        "run_queue_wait_ms": int(waiting_ns) / 1e6,
        "page_faults": int(stat[7]) + int(stat[9]),
        "involuntary_switches": int(status["nonvoluntary_ctxt_switches"]),
    }


def memory_bytes() -> dict[str, int]:
    """Memory that the kernel counts to this process, anonymous and shared apart.

    A shared page counts to each of the processes that map it by their equal parts (PSS), so the
    sum over the ranks is what they take of the machine. Pages of files, such as the libraries'
    code, are left out: other programs share them.
    """
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
    return {"anonymous": 1024 * kib["Pss_Anon"], "shared": 1024 * kib["Pss_Shmem"]}
