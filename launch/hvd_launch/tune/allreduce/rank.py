"""One rank of a measuring job: times allreduce, and reports the library's settings.

Rank 0 prints lines of MARK and JSON; `hvd-launch tune allreduce`
reads them. The one argument is a JSON object: see `Assignment`.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.allreduce.table import load
from hvd_ext.allreduce.timing import check, sample_s
from hvd_ext.cli import run
from hvd_launch.backends.libraries import LIBRARIES, version_line

if TYPE_CHECKING:
    from mpi4py import MPI

MARK = "hvd-tune: "
# Short calls are timed several at a time, so that the clock and the ranks' different
# starts do not count.
_SAMPLE_S = 0.002
_MOST_CALLS = 200
# Time spent on a size, and its number of samples.
_BUDGET_S = 0.08
_LEAST_SAMPLES, _MOST_SAMPLES = 3, 9
_TIMEOUT_S = 60.0
_PART = 2000


@dataclass(frozen=True)
class Assignment:
    """A measurement to make.

    Attributes:
        sizes: message_bytes of each allreduce (float32, sum, in place, as Horovod's).
        limits_us: for each size, the time of a call beyond which further calls do not pay.
        read: control variables to read from the library (MPI_T).
        selection: report the built-in choices of this library, in parts.
        table: reduce with the algorithms of this hvd_ext table, not MPI_Allreduce.
    """

    sizes: list[int]
    limits_us: list[float] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    selection: str = ""
    table: str | None = None


def main(arguments: Sequence[str]) -> int:
    """Measure as the argument says, on all ranks."""
    from mpi4py import MPI

    task = Assignment(**json.loads(arguments[0]))
    world = MPI.COMM_WORLD.Dup()
    facts = _facts(world, task)
    if world.rank == 0:
        _write({"kind": "facts", **facts})
        for part in _built_in_selection(task.selection):
            _write({"kind": "selection", "part": part})
    planner = _planner(world, task.table)
    limits = task.limits_us or [float("inf")] * len(task.sizes)
    for message_bytes, limit_us in zip(task.sizes, limits, strict=True):
        buffer = np.zeros(message_bytes // 4, np.float32)
        times_s = _samples(world, planner(buffer), buffer, limit_us / 1e6)
        if world.rank == 0:
            us = [round(1e6 * time_s, 3) for time_s in times_s]
            _write({"kind": "time", "message_bytes": message_bytes, "us": us})
    return 0


def _write(entry: dict[str, Any]) -> None:
    # One write, so that other ranks' output does not get in between.
    os.write(1, f"{MARK}{json.dumps(entry)}\n".encode())


def _planner(
    world: MPI.Comm, table: str | None
) -> Callable[[np.ndarray[Any, Any]], Callable[[], Any]]:
    from mpi4py import MPI

    if table is None:
        return lambda buffer: lambda: world.Allreduce(MPI.IN_PLACE, buffer)
    from hvd_ext.allreduce.persistent import PersistentAllreduce
    from hvd_ext.job.topology import discover

    topology = discover(world, _TIMEOUT_S)
    read = load(Path(table))
    return lambda buffer: PersistentAllreduce(topology, buffer, table=read)


def _samples(
    world: MPI.Comm, call: Callable[[], Any], buffer: np.ndarray[Any, Any], limit_s: float
) -> list[float]:
    check(world, world, "allreduce", buffer, call)
    first_s = sample_s(world, call, 1)
    if first_s > limit_s:
        return [first_s]
    repeats = min(_MOST_CALLS, 1 + int(_SAMPLE_S / first_s))
    count = int(_BUDGET_S / (first_s * repeats))
    count = max(_LEAST_SAMPLES, min(_MOST_SAMPLES, count))
    return [sample_s(world, call, repeats) for _ in range(count)]


def _facts(world: MPI.Comm, task: Assignment) -> dict[str, Any]:
    from mpi4py import MPI

    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    per_node = [size for size, rank in world.allgather((node.size, node.rank)) if rank == 0]
    library = _library()
    return {
        "library": version_line(MPI.Get_library_version()),
        "size": world.size,
        "ranks_per_node": per_node,
        "variables": _control_variables(library, task.read),
    }


def _library() -> str:
    """Return the file of the MPI library that this process uses."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = (line.split(maxsplit=5)[-1] for line in lines)
    return next(path for path in paths if re.match(r"libmpi(ch)?\.so", Path(path).name))


def _control_variables(library: str, names: Sequence[str]) -> dict[str, int | str | None]:
    """Return the library's values of these control variables; None for a missing one."""
    from mpi4py import MPI

    mpi = ctypes.CDLL(library)
    # With a lower level, Open MPI 5 lowers the thread level of the whole library.
    if not names or mpi.MPI_T_init_thread(MPI.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int())):
        return dict.fromkeys(names)
    return {name: _control_variable(mpi, name) for name in names}


def _control_variable(mpi: ctypes.CDLL, name: str) -> int | str | None:
    index, count, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    if mpi.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
        return None
    if mpi.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)):
        return None
    value = ctypes.create_string_buffer(max(16, count.value + 1))
    if mpi.MPI_T_cvar_read(handle, value):
        return None
    # A variable of several elements is a text; of one, a number of at most four bytes.
    if count.value > 1:
        return value.value.decode(errors="replace")
    return int.from_bytes(value.raw[:4], sys.byteorder, signed=True)


def _built_in_selection(library: str) -> list[str]:
    """Print in parts, because not every launcher leaves long lines whole."""
    text = LIBRARIES[library].built_in_selection(Path(_library())) if library else ""
    return [text[at : at + _PART] for at in range(0, len(text), _PART)]


if __name__ == "__main__":
    run(main, "hvd-launch tune")
