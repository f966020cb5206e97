"""Rounds of the device arena on several nodes, on the stand-in for CuPy, beside a HostArena's.

GPUs are late in each round: this rank's kernels, and the copies that bring shards back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.table import Row, Table
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.host import HostArena
from hvd_ext.compression.formats import NONE, Format
from testbed.cuda_stand_in import streams

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology

TABLE = Table((Row(0, 0, "host", ((0, "recursive_doubling"),)),), "a test")
COUNTS = (1, 7, 33, 4097, 50_003)
ROUNDS, LATE_S = 3, 0.03


def rounds(
    topology: Topology,
    dtype: str = "float32",
    format: Format = NONE,
    bucket_bytes: int = 1 << 16,
    table: Table = TABLE,
) -> list[str]:
    """What differs from a HostArena with the same gradients; collective."""
    from tests.support.arena.device_rounds import Device, layout_of, raw, values

    rank, scale = topology.world.rank, 1 / topology.world.size
    layout = layout_of(COUNTS, dtype, bucket_bytes)
    device = Device(topology, rank % streams.DEVICES)
    on_gpu = device.arena(layout, scale, table=table, format=format)
    on_host = HostArena(ArenaConfig(topology, table, 60, format), layout, scale)
    assert on_gpu._between is not None
    kept, found = [], []
    for number in range(ROUNDS):
        late = number % topology.world.size == rank
        on_gpu._stream.launch_host_func(time.sleep, late * LATE_S)
        on_gpu._between._back.launch_host_func(time.sleep, late * LATE_S)
        for index, bucket in enumerate(layout.buckets):
            for span in bucket.spans:
                kept.append(raw(values(dtype, span.count, rank, number)))
                device.fill(on_gpu, span.offset_bytes, kept[-1])
                on_host.data[span.offset_bytes :][: kept[-1].nbytes] = kept[-1]
            on_gpu.ready(index)
            on_gpu.reduce(index)
            on_host.reduce(index)
        on_gpu.finish()
        on_host.finish()
        # In the stream, as a program reads them: nothing but events keeps the order.
        found.append((device.read(on_gpu), on_host.data.copy()))
    device.stream.synchronize()
    problems = [
        f"round {number}: {span.count} elements"
        for number, (got, wanted) in enumerate(found)
        for bucket in layout.buckets
        for span in bucket.spans
        for part in [slice(span.offset_bytes, span.offset_bytes + span.count * 4)]
        if not np.array_equal(got[part], wanted[part])
    ]
    on_gpu.close()
    on_host.close()
    return problems
