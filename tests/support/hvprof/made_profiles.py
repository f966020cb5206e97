"""Two steps on a GPU that never ran, as torch.profiler would write them, and their sums.

Times are in us on the profiler's clock, from the first step's begin. Step 11 on the GPU:

    stream 7    compute 0-40, 52-60 (launched before the inner optimizer's step), optimizer 63-70
    stream 8    compute 5-15
    stream 20   halo 10-20, 38-50
    stream 21   NCCL 30-55
    stream 22   copy 65-80, with which the step ends
    host        MPI_Allreduce 62-66, and another one meanwhile

The host has launched all of it by 45. Step 12 lasts from 80 to 200: compute 90-190, and a call of
MPI from 195 on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import hvprof
from hvd_ext.timeline import CLOCK_MARK, Timeline, activities_of, write
from hvprof.format.key import Key, encode
from hvprof.format.layout import EVENT
from hvprof.format.reader import read_tables
from tests.support.hvprof.made_recordings import write_job

BEGIN_US = 5_000_000.0  # on the profiler's clock
OFFSET_NS = 7_000_000_123  # of the monotonic clock
MARKS_US = ((0, 1), (45, 46), (46, 47), (200, 201))

Event = dict[str, Any]
# What the golden steps come to, in us: time, and the part of it that is hidden.
STEPS = {
    11: {
        "time": 80,
        "idle": 2,
        "compute": (48, 0),
        "optimizer": (7, 0),
        "halo": (22, 12),
        "allreduce": (29, 16),
        "copies": (15, 5),
    },
    12: {
        "time": 120,
        "idle": 15,
        "compute": (100, 0),
        "optimizer": (0, 0),
        "halo": (0, 0),
        "allreduce": (5, 0),
        "copies": (0, 0),
    },
}
OVERLAPS = {
    "compute and halo": 12,
    "compute and allreduce": 13,
    "optimizer and allreduce": 3,
    "optimizer and copies": 5,
    "halo and allreduce": 12,
    "allreduce and copies": 1,
}


def events() -> list[Event]:
    """The trace, in Chrome's format."""
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    device = [
        # begin, end, launched, stream, name
        (0, 40, 1, 7, "sm90_xmma_gemm_f32f32"),
        (52, 60, 36, 7, "vectorized_elementwise_kernel<4, MulFunctor>"),
        (63, 70, 40, 7, "multi_tensor_apply_kernel<FusedAdam>"),
        (5, 15, 2, 8, "at::native::reduce_kernel"),
        (10, 20, 3, 20, "move"),
        (38, 50, 4, 20, "move"),
        (30, 55, 5, 21, nccl),
        (65, 80, 6, 22, "Memcpy HtoD (Pinned -> Device)"),
        (90, 190, 50, 7, "sm90_xmma_gemm_f32f32"),
    ]
    made: list[Event] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
    for number, (begin, end, launched, stream, name) in enumerate(device):
        copies = name.startswith("Memcpy")
        args = {"device": 0, "stream": stream, "correlation": number}
        cat = "gpu_memcpy" if copies else "kernel"
        made.append(_event(cat, name, begin, end, 0, stream, args))
        called = "cudaMemcpyAsync" if copies else "cudaLaunchKernel"
        times = (launched - 0.25, launched + 0.25)
        made.append(_event("cuda_runtime", called, *times, 99, 99, {"correlation": number}))
    # The outer step waits before the inner one begins, and is the GPU's range, too.
    made.append(_event("user_annotation", "Optimizer.step#Wrapped.step", 35, 44, 99, 99))
    made.append(_event("user_annotation", "Optimizer.step#Adam.step", 38, 43, 99, 99))
    made.append(_event("gpu_user_annotation", "Optimizer.step#Adam.step", 0, 70, 0, 7))
    made.append(_event("cpu_op", "aten::linear", 0, 30, 99, 99))
    for number, (begin, end) in enumerate(MARKS_US):
        made.append(
            _event("user_annotation", f"{CLOCK_MARK}{number}", begin + 0.25, end - 0.25, 99, 99)
        )
    return made


def _event(
    cat: str, name: str, begin: float, end: float, pid: int, tid: int, args: Event | None = None
) -> Event:
    times = {"ts": BEGIN_US + begin, "dur": end - begin}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        **times,
        "args": args or {},
    }


def on_clock(us: float) -> int:
    """A time on the rank's monotonic clock, in ns."""
    return round((BEGIN_US + us) * 1e3) + OFFSET_NS


def marks() -> list[tuple[int, int]]:
    """When the marks were made on the monotonic clock; the first one took long."""
    made = [(on_clock(begin), on_clock(end)) for begin, end in MARKS_US]
    # Its middle is 200 us off, and must not count.
    return [(made[0][0] - 400_000, on_clock(0)), *made[1:-1], (on_clock(200), made[-1][1])]


def write_profiled_job(directory: Path, ranks: int = 2) -> Path:
    """Write a recording, and the golden steps of each of its ranks."""
    write_job(directory, ranks)
    for rank in hvprof.load(directory).ranks:
        path = directory / f"rank-{rank.rank:05d}.hvprof"
        activities, steps = activities_of(events(), marks())
        called = ((1, 62, 66), (2, 63, 65), (3, 195, 205))
        calls = np.zeros(len(called), EVENT)
        operation = read_tables(path).names.index("allreduce")
        for call, (number, begin, end) in zip(calls, called, strict=True):
            call["number"], call["key"] = number, encode(Key(operation, 1))
            call["begin_ns"], call["end_ns"] = on_clock(begin), on_clock(end)
            call["thread"], call["peer"] = 99, -1
        timeline = Timeline(rank.rank, 11, 12, 12, tuple(steps), tuple(activities), calls.tobytes())
        write(path.with_suffix(".timeline"), timeline)
    return directory
