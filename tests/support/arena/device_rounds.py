"""Rounds of the device arena on the stand-in for CuPy, with GPUs that are late in turn.

In each round one rank's gradients come only when all other ranks' hosts have queued their
kernels, it takes its time to record events, and its own kernels come only after the others have
read the results, if they do not wait for it. In every other round another rank reads only when
the kernels of the next round are queued. Nothing but events and tickets keeps the order.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hvd_ext.allreduce.table import BUILT_IN, Table
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda.arena import DeviceArena
from hvd_ext.arena.layout import Layout, ParameterSpec, layout_by_size
from hvd_ext.job.progress_thread import ProgressThread
from hvd_ext.shm.regions import map_regions
from testbed import cuda_stand_in

if TYPE_CHECKING:
    import pytest

    from hvd_ext.job.topology import Topology

cuda_stand_in.install()
cuda: Any = cuda_stand_in.cuda
runtime = cuda.runtime
ROUNDS = 4
COUNTS = (0, 1, 7, 33, 4097, 50_003)
# How long the others have to do harm: kernels that are queued; ranks that do not wait.
LATER_S, UNTIL_READ_S = 0.03, 0.2
_UNTIL_QUEUED_S = 5.0  # where something is wrong
_QUEUED, _READ = 64, 65  # words of a rank's region: the rounds that it came to


def values(dtype: str, count: int, rank: int, number: int) -> torch.Tensor:
    """Numbers of many magnitudes, some of them subnormal."""
    generator = torch.Generator().manual_seed(1000 * number + 10 * rank + count % 7)
    made = torch.randn(count, generator=generator)
    made *= torch.pow(10.0, torch.randint(-4, 3, (count,), generator=generator).float())
    made[::7] *= 1e-39
    return made.to(getattr(torch, dtype))


def expected(dtype: str, count: int, size: int, number: int, scale: float) -> torch.Tensor:
    """Summed in rank order in 32 bits, and rounded once."""
    total = values(dtype, count, 0, number).float()
    for rank in range(1, size):
        total = total + values(dtype, count, rank, number).float()
    return (total * torch.tensor(scale)).to(getattr(torch, dtype))


def raw(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.uint8).numpy()


class Device:
    """A rank's device and the stream that its gradients are made on."""

    def __init__(self, topology: Topology, ordinal: int = 0) -> None:
        self.topology, self.ordinal = topology, ordinal
        with cuda.Device(ordinal):
            self.stream = cuda.Stream(non_blocking=True)

    def arena(
        self,
        layout: Layout,
        scale: float = 1.0,
        timeout_s: float = 60,
        table: Table = BUILT_IN,
        **others: Any,
    ) -> DeviceArena:
        config = ArenaConfig(self.topology, table, timeout_s, **others)
        pointer = self.stream.ptr
        return DeviceArena(config, layout, scale, self.ordinal, lambda: pointer)

    def fill(self, arena: DeviceArena, offset_bytes: int, data: np.ndarray) -> None:
        """Have the stream put bytes into the arena."""
        to, kind = arena.data.data.ptr + offset_bytes, runtime.memcpyHostToDevice
        runtime.memcpyAsync(to, data.ctypes.data, data.nbytes, kind, self.stream.ptr)

    def read(self, arena: DeviceArena) -> np.ndarray:
        """All of the arena, once the stream has come there."""
        data = np.zeros(arena.data.nbytes, np.uint8)
        kind = runtime.memcpyDeviceToHost
        runtime.memcpyAsync(
            data.ctypes.data, arena.data.data.ptr, data.nbytes, kind, self.stream.ptr
        )
        return data


def layout_of(
    counts: Sequence[int], dtype: str = "float32", bucket_bytes: int = 1, columns: int = 0
) -> Layout:
    """One bucket for each gradient, or of at most so many bytes; of matrices with `columns`."""
    specs = [
        ParameterSpec(str(i), (count // columns, columns), (columns, 1), dtype)
        if columns
        else ParameterSpec(str(i), (count,), (1,), dtype)
        for i, count in enumerate(counts)
    ]
    return layout_by_size(specs, bucket_bytes)


def one_round(device: Device, arena: DeviceArena, number: int = 0) -> bool:
    """A round without haste; whether all sums are right."""
    world = device.topology.world
    inputs = [raw(values("float32", s.count, world.rank, number)) for s in _spans(arena)]
    for span, data in zip(_spans(arena), inputs, strict=True):
        device.fill(arena, span.offset_bytes, data)
    for index in range(len(arena.layout.buckets)):
        arena.reduce(index)
    arena.finish()
    got = device.read(arena)
    device.stream.synchronize()
    return not _wrong(arena.layout, got, "float32", world.size, number, 1.0)


def late_rounds(
    topology: Topology,
    patch: pytest.MonkeyPatch,
    dtype: str = "float32",
    bucket_bytes: int = 1,
    **others: Any,
) -> list[str]:
    """What is wrong with the averages of ROUNDS rounds; collective."""
    rank, size = topology.world.rank, topology.world.size
    scale = 1 / size
    words = [np.frombuffer(region, np.uint64) for region in map_regions(topology.node, 4096)]
    device = Device(topology, rank % cuda_stand_in.streams.DEVICES)
    layout = layout_of(COUNTS, dtype, bucket_bytes)
    arena = device.arena(layout, scale, **others)
    runtime_records = runtime.eventRecord
    progress = ProgressThread()
    progress.submit(arena.enter_thread)

    def record(event: int, stream: int) -> None:
        time.sleep(late * LATER_S)
        runtime_records(event, stream)

    def until_others(word: int, number: int, most_s: float) -> None:
        others = [mine for index, mine in enumerate(words) if index != rank]
        deadline = time.monotonic() + most_s
        while any(mine[word] < number for mine in others) and time.monotonic() < deadline:
            time.sleep(LATER_S / 100)

    def until_queued(number: int) -> None:
        until_others(_QUEUED, number, _UNTIL_QUEUED_S)
        time.sleep(LATER_S)

    def until_read(number: int) -> None:
        until_others(_READ, number, UNTIL_READ_S)

    def reached(number: int) -> None:
        words[rank][_READ] = number

    results, kept, late = [], [], False
    patch.setattr(runtime, "eventRecord", record)
    for number in range(1, ROUNDS + 1):
        late = number % size == rank
        if late:
            device.stream.launch_host_func(until_queued, number)
            arena._stream.launch_host_func(until_queued, number)
            arena._stream.launch_host_func(until_read, number)
        for index, bucket in enumerate(layout.buckets):
            for span in bucket.spans:
                kept.append(raw(values(dtype, span.count, rank, number)))
                device.fill(arena, span.offset_bytes, kept[-1])
            arena.ready(index)
            done = progress.submit(functools.partial(arena.reduce, index))
        done.result()
        words[rank][_QUEUED] = number
        arena.finish()
        if (number + 1) % size == rank and number % 2 and number < ROUNDS:
            device.stream.launch_host_func(until_queued, number + 1)
        results.append(device.read(arena))
        device.stream.launch_host_func(reached, number)
    device.stream.synchronize()
    problems = [
        f"round {number}: {text}"
        for number, got in enumerate(results, 1)
        for text in _wrong(layout, got, dtype, size, number, scale)
    ]
    for number, got in enumerate(results, 1):
        if len(set(topology.world.allgather(got.tobytes()))) > 1:
            problems.append(f"round {number}: ranks hold different bits")
    progress.close()
    arena.close()
    return problems


def _wrong(
    layout: Layout, got: np.ndarray, dtype: str, size: int, number: int, scale: float
) -> list[str]:
    """The gradients of which the sum is not what it must be, to the bit."""
    wrong = []
    for bucket in layout.buckets:
        for span in bucket.spans:
            wanted = raw(expected(dtype, span.count, size, number, scale))
            held = got[span.offset_bytes : span.offset_bytes + wanted.nbytes]
            if not np.array_equal(held, wanted):
                wrong.append(f"the sum of {span.count} elements")
    return wrong


def _spans(arena: DeviceArena) -> list[Any]:
    return [span for bucket in arena.layout.buckets for span in bucket.spans]
