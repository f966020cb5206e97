"""Time of the exchange of a bucket on this job's nodes, ranks and links."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.arena.buckets import BucketCost
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import ParameterSpec, layout_buckets
from hvd_ext.events import tuning
from hvd_ext.job.progress_thread import ProgressThread
from hvd_ext.units import MIB

if TYPE_CHECKING:
    from hvd_ext.arena.config import ArenaConfig

_ROUNDS, _WARM_UP = 6, 1
_SHORT = 16  # elements
_LONG, _MANY = 2 * MIB // 4, 4


def measure_bucket(config: ArenaConfig, between_nodes: bool = True) -> BucketCost:
    """Exchange a few buckets as training does; collective, and some ms long.

    Arguments are as HostArena takes them.

    Raises:
        WindowError: ranks of a node cannot share memory.
    """
    with tuning():
        short_s = _exchange_s(config, between_nodes, [_SHORT])
        # Several, because between nodes their parts overlap, and no cache should hold them.
        long_s = _exchange_s(config, between_nodes, [_LONG] * _MANY)
    # Even on a noisy machine, a long bucket's time is not only latency.
    return BucketCost(short_s, max(long_s / 2, long_s - _MANY * short_s) / (_MANY * _LONG * 4))


def _exchange_s(config: ArenaConfig, between_nodes: bool, counts: list[int]) -> float:
    world = config.topology.world
    specs = [
        ParameterSpec(str(i), (1, count), (count, 1), "float32") for i, count in enumerate(counts)
    ]
    plan = layout_buckets(specs, [[i] for i in range(len(specs))])
    arena = HostArena(config, plan, 1.0, between_nodes)
    arena.data.view(np.float32)[:] = 1.0  # a codec is quicker with zeros
    progress = ProgressThread()
    times_s = []  # noise only adds time: the shortest counts
    for _ in range(_WARM_UP + _ROUNDS):
        world.Barrier()
        start_s = time.perf_counter()
        arena.ready(len(counts) - 1)
        for index in range(len(counts)):
            progress.submit(functools.partial(arena.reduce, index)).result()
        arena.finish()
        times_s.append(time.perf_counter() - start_s)
    progress.close()
    arena.close()
    return float(world.bcast(min(times_s[_WARM_UP:])))
