"""The check before the first arena on a machine's GPUs: do they give the right bits?

Random gradients of every dtype and of many lengths go through a DeviceArena for some rounds, and
through a HostArena with the same ranks. The device's rounds follow each other without a wait of the
host, so that a missing synchronization between streams, processes or GPUs shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.allreduce.carrier_names import IPC
from hvd_ext.arena.cuda.arena import DeviceArena, carried_by
from hvd_ext.arena.cuda.ipc import or_window_error
from hvd_ext.arena.cuda.kernels import SERVED
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import Layout, ParameterSpec, layout_by_size
from hvd_ext.compression.formats import NONE
from hvd_ext.dtypes import DTYPES
from hvd_ext.shm.regions import WindowError, on_every_rank

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.arena.config import ArenaConfig

ROUNDS = 100
# Results of this many first rounds are compared; rounds without a pause find a missing
# synchronization.
_COMPARED_WITH_HOST = 10
_COUNTS = (1, 33, 4_097, 65_536)
_BUCKET_BYTES = 1 << 16


# The GPUs of this process whose sums were seen to be right, each with the ranks that took part.
_proved: set[tuple[int, tuple[int, ...]]] = set()


def prove(config: ArenaConfig, device: int, current_stream: Callable[[], int]) -> None:
    """As `check`, unless it has been done before; collective."""
    topology = config.topology
    of_ranks = device, tuple(topology.ranks)
    # A rank may have changed its GPU since.
    asked = topology.allgather(of_ranks in _proved, config.timeout_s, "the self-check of GPUs")
    if all(asked):
        return
    check(config, device, current_stream)
    _proved.add(of_ranks)


def check(
    config: ArenaConfig, device: int, current_stream: Callable[[], int], rounds: int = ROUNDS
) -> None:
    """Check that sums on these GPUs are right; collective.

    Args:
        config: how arenas exchange.
        device: ordinal of this rank's GPU in this process.
        current_stream: see DeviceArena.
        rounds: how many exchanges.

    Raises:
        WindowError: on every rank, if sums are wrong on one, or there can be no arena.
    """
    topology = config.topology
    specs = [
        ParameterSpec(f"{dtype}{count}", (count,), (1,), dtype)
        for dtype in SERVED
        for count in _COUNTS
    ]
    layout = layout_by_size(specs, _BUCKET_BYTES)
    scale = 1 / topology.world.size
    by_kernel = replace(config, table=carried_by(IPC, config.table), format=NONE)
    on_device = DeviceArena(by_kernel, layout, scale, device, current_stream)
    on_host = HostArena(by_kernel, layout, scale)
    kinds = min(rounds, _COMPARED_WITH_HOST)
    gradients = [_gradients(layout, topology.world.rank, number) for number in range(kinds)]
    expected = []
    for own in gradients:
        on_host.data[:] = own
        _exchange(on_host)
        expected.append(on_host.data.copy())
    try:
        found = _on_device(on_device, gradients, rounds, device, current_stream)
    finally:
        on_device.close()
        on_host.close()

    def compare() -> None:
        for number, got in enumerate(found):
            for bucket in layout.buckets:
                for span in bucket.spans:
                    count = span.count * DTYPES[bucket.dtype].item_bytes
                    part = slice(span.offset_bytes, span.offset_bytes + count)
                    if not np.array_equal(got[part], expected[number % kinds][part]):
                        raise WindowError(
                            f"GPU {device} gave wrong sums in exchange {number + 1} of {rounds} "
                            f"({span.count} of {bucket.dtype})"
                        )

    on_every_rank(topology, compare)


def _gradients(layout: Layout, rank: int, number: int) -> Array:
    """Return numbers of many magnitudes for a whole arena, some of them subnormal."""
    random = np.random.default_rng([rank, number])
    data = np.zeros(layout.total_bytes, np.uint8)
    for bucket in layout.buckets:
        values = random.standard_normal(bucket.count) * 10.0 ** random.integers(-4, 3, bucket.count)
        values[::7] *= 1e-39
        of_dtype = values.astype(np.float16 if bucket.dtype == "float16" else np.float32)
        stored = of_dtype.view(np.uint8)
        if bucket.dtype == "bfloat16":  # the upper half of a float32
            stored = (of_dtype.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        data[bucket.offset_bytes :][: len(stored)] = stored
    return data


def _exchange(arena: DeviceArena | HostArena) -> None:
    for index in range(len(arena.layout.buckets)):
        arena.ready(index)
        arena.reduce(index)
    arena.finish()


def _on_device(
    arena: DeviceArena,
    gradients: list[Array],
    rounds: int,
    device: int,
    current_stream: Callable[[], int],
) -> list[Array]:
    """Return the sums of each round, after queueing the work of all rounds at once."""
    with or_window_error(f"the self-check of GPU {device}"):
        import cupy

        runtime, stream = cupy.cuda.runtime, current_stream()
        address, length = arena.data.data.ptr, arena.layout.total_bytes

        def pinned() -> Array:
            memory: Any = cupy.cuda.alloc_pinned_memory(length)
            return np.frombuffer(memory, np.uint8, length)

        with cupy.cuda.Device(device):
            given = [pinned() for _ in gradients]
            for to, own in zip(given, gradients, strict=True):
                to[:] = own
            found = [pinned() for _ in range(rounds)]
            for number, got in enumerate(found):
                own, kind = given[number % len(given)], runtime.memcpyHostToDevice
                runtime.memcpyAsync(address, own.ctypes.data, length, kind, stream)
                _exchange(arena)
                kind = runtime.memcpyDeviceToHost
                runtime.memcpyAsync(got.ctypes.data, address, length, kind, stream)
            runtime.streamSynchronize(stream)
    return found
