"""DDP's buckets in the stand-in's device memory: what a model on a GPU gives its hook.

`rounds` has buckets that are filled and read in a stream, so that nothing but events keeps the
order. `on_device` has a model on the CPU behave as one on a GPU, and waits for the stream.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hvd_ext.allreduce.agreed import read_table
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.c10d import ddp, device_arena, exchange
from hvd_ext.c10d.exchange import Exchange
from testbed import cuda_stand_in
from testbed.cuda_stand_in import memory
from tests.support.arena.device_rounds import raw, values

if TYPE_CHECKING:
    import pytest

    from hvd_ext.compression.formats import Format
    from hvd_ext.job.topology import Topology

cuda_stand_in.install()
runtime: Any = cuda_stand_in.cuda.runtime
# Of matrices of so many rows: no bucket is a whole number of cache lines.
COUNTS, ROWS = ((7, 33 * 3), (1, 4097 * 3), (50_001,)), 3
# DDP has other buckets after the first step. A format with a residual counts from step 5 on.
STEPS, LATE_S = 7, 0.03


class Bucket:
    """A `dist.GradBucket`."""

    def __init__(self, number: int, last: bool, memory: torch.Tensor, counts: Any) -> None:
        self._number, self._last, self._memory, self._counts = number, last, memory, counts

    def index(self) -> int:
        return self._number

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> torch.Tensor:
        return self._memory

    def gradients(self) -> list[torch.Tensor]:
        parts = self._memory.split(list(self._counts))
        return [p.view(ROWS, -1) if p.numel() % ROWS == 0 else p for p in parts]


def buckets(dtype: str, groups: Any, on_device: bool) -> list[Bucket]:
    """New memory for buckets of gradients with these numbers of elements."""
    made = []
    for index, counts in enumerate(groups):
        kind = getattr(torch, dtype)
        tensor = torch.zeros(sum(counts), dtype=kind)
        if on_device:
            held = (ctypes.c_char * tensor.nbytes).from_address(memory.malloc(tensor.nbytes))
            tensor = torch.frombuffer(held, dtype=kind)
        made.append(Bucket(index, index == len(groups) - 1, tensor, counts))
    return made


def rounds(
    topology: Topology, patch: pytest.MonkeyPatch, dtype: str, format: Format
) -> tuple[list[str], str]:
    """What differs from the exchange on the host, and what `explain` says; collective."""
    rank, device = topology.world.rank, topology.world.rank % cuda_stand_in.streams.DEVICES
    with cuda_stand_in.cuda.Device(device):
        stream = cuda_stand_in.cuda.Stream(non_blocking=True)
        first = buckets(dtype, COUNTS[::-1], on_device=True)
        others = buckets(dtype, COUNTS, on_device=True)
    use(patch, stream)
    config = ArenaConfig(topology, read_table(topology.world), 60, format, "a test")
    on_gpu = Exchange(config, None, device)  # type: ignore[arg-type]
    on_host = Exchange(config, None)  # type: ignore[arg-type]
    kept, found, wanted = [], [], []
    for step in range(STEPS):
        late = step % topology.world.size == rank
        if on_gpu._arena is not None:
            on_gpu._arena._stream.launch_host_func(time.sleep, late * LATE_S)
        ours = others if step else first
        theirs = buckets(dtype, COUNTS if step else COUNTS[::-1], on_device=False)
        for here, there in zip(ours, theirs, strict=True):
            buffer = there.buffer()
            buffer.copy_(values(dtype, buffer.numel(), rank, step))
            kept.append(raw(buffer.clone()))
            stream.launch_host_func(time.sleep, late * LATE_S / 3)
            copy(here.buffer().data_ptr(), kept[-1].ctypes.data, kept[-1].nbytes, True, stream)
            on_gpu.exchange(here)
            on_host.exchange(there)
        for here in ours:
            got = np.zeros(here.buffer().nbytes, np.uint8)
            copy(got.ctypes.data, here.buffer().data_ptr(), got.nbytes, False, stream)
            found.append(got)
        wanted += [raw(there.buffer().clone()) for there in theirs]
    stream.synchronize()
    problems = [
        f"step {number // len(COUNTS)}, bucket {number % len(COUNTS)}"
        for number, (got, want) in enumerate(zip(found, wanted, strict=True))
        if not np.array_equal(got, want)
    ]
    said = on_gpu.explain()
    on_gpu.close()
    on_host.close()
    return problems, said


def copy(to: int, source: int, length: int, to_device: bool, stream: Any) -> None:
    kind = runtime.memcpyHostToDevice if to_device else runtime.memcpyDeviceToHost
    runtime.memcpyAsync(to, source, length, kind, stream.ptr)


def use(patch: pytest.MonkeyPatch, stream: Any, proved: bool = True) -> None:
    """Make a stream the current one, of devices that need no check if they are `proved`."""
    for module in (device_arena, exchange):
        patch.setattr(module, "current_stream", lambda device: stream.ptr)
    if proved:
        patch.setattr(exchange, "prepare", lambda config, *_: config)


def on_device(patch: pytest.MonkeyPatch, ordinal: int, proved: bool = True) -> None:
    """Have `attach` take models on the CPU for models on a GPU."""
    with cuda_stand_in.cuda.Device(ordinal):
        stream = cuda_stand_in.cuda.Stream(non_blocking=True)
    use(patch, stream, proved)
    patch.setattr(ddp, "check", lambda model: torch.device("cuda", ordinal))
    patch.setattr(memory, "check", lambda *_: None)  # DDP's buckets are on the host
    end_step = Exchange._end_step

    def wait(self: Exchange) -> None:
        end_step(self)
        stream.synchronize()

    patch.setattr(Exchange, "_end_step", wait)
