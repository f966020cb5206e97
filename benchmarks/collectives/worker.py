"""A rank of the benchmark: checks and times every case, contenders interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.collectives import calls
from benchmarks.harness import BenchmarkError
from testbed import ranks, timing

# Every rank gets a part of the message.
_CUT = ("reduce_scatter", "all_to_all")
Call = Callable[[], None]
Make = Callable[[str, calls.Buffers], Call]
# A sample of short calls lasts about so long, and has at most so many of them.
_SAMPLE_S, _MOST_CALLS = 0.02, 200


def work(
    layout: str, collectives: list[str], sizes: list[int], rounds: int, ucc: Path | None
) -> None:
    """Measure all cases of one layout; rank 0 reports them.

    Args:
        layout: nodes x ranks, which name the cases.
        collectives: of calls.COLLECTIVES.
        sizes: bytes of the messages.
        rounds: how often each contender is timed.
        ucc: ucc.c, compiled.
    """
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    import hvd_ext.c10d  # noqa: F401  (registers the backend)
    from hvd_ext.c10d.ranks import topology_of

    torch.set_num_threads(1)
    dist.init_process_group("hvd_ext", init_method="mpi://", timeout=timedelta(minutes=5))
    gloo = dist.new_group(backend="gloo", timeout=timedelta(minutes=5))
    world = MPI.COMM_WORLD
    own_comm = world.Dup()
    assert dist.group.WORLD is not None
    carrier = engine(topology_of(dist.group.WORLD))
    levels: dict[str, dict[str, Make]] = {
        "torch": {
            "hvd_ext": partial(calls.of_torch, dist.group.WORLD),
            "gloo": partial(calls.of_torch, gloo),
        },
        "engine": {
            "hvd_ext": partial(calls.of_engine, carrier),
            "mpi": partial(calls.of_mpi, own_comm),
        },
    }
    if ucc:
        levels["engine"]["ucc"] = calls.Ucc(ucc, world.rank, world.size).call
    cases = []
    for collective in collectives:
        for message_bytes in sizes if collective != "barrier" else [0]:
            if message_bytes and message_bytes < 4 * world.size and collective in _CUT:
                continue  # no element for each rank
            for level in ("torch", "engine"):
                contenders = levels[level]
                times_us = _measure(world, collective, message_bytes, contenders, rounds)
                peers = {name: t for name, t in times_us.items() if name != "hvd_ext"}
                best = min(peers, key=lambda name: peers[name]["median"])
                cases.append(
                    {
                        "level": level,
                        "layout": layout,
                        "collective": collective,
                        "message_bytes": message_bytes,
                        "time_us": times_us,
                        "best_peer": best,
                        "ratio_vs_best_peer": peers[best]["median"] / times_us["hvd_ext"]["median"],
                    }
                )
    if world.rank == 0:
        ranks.report({"cases": cases, "mpi": MPI.Get_library_version().split(",")[0]})
    carrier.close(True)
    dist.destroy_process_group()


def engine(topology: Any) -> Any:
    """The engine's collectives for these ranks."""
    from hvd_ext.engine.one_node import OneNode
    from hvd_ext.engine.several_nodes import SeveralNodes

    kind = OneNode if topology.one_node else SeveralNodes
    return kind(topology, 300.0, lambda *_: "another collective", "the benchmark's limit")


def _measure(
    world: Any,
    collective: str,
    message_bytes: int,
    contenders: dict[str, Make],
    rounds: int,
) -> dict[str, dict[str, float]]:
    """Microseconds of one call by the slowest rank, of each contender."""
    ready: dict[str, Call] = {}
    for name, make in contenders.items():
        given = calls.buffers(collective, message_bytes, world.size)
        call = make(collective, given)
        if message_bytes:
            calls.fill(collective, given, world.rank)
            call()
            right = np.array_equal(
                given.out, calls.expected(collective, given, world.rank, world.size)
            )
            if not all(world.allgather(right)):
                raise BenchmarkError(f"{name}: {collective} of {message_bytes} bytes is wrong")
        given.own.fill(0)
        ready[name] = call

    def sample(call: Call, times: int) -> float:
        world.Barrier()
        start_s = time.perf_counter()
        for _ in range(times):
            call()
        return float(world.allreduce((time.perf_counter() - start_s) / times, op=_max()))

    repeats = {
        name: max(1, min(_MOST_CALLS, int(_SAMPLE_S / sample(call, 2))))
        for name, call in ready.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in ready}
    for number in range(1 + rounds):
        for name, call in ready.items():
            time_s = sample(call, repeats[name])
            if number:
                samples[name].append(1e6 * time_s)
    return {name: timing.summary(times) for name, times in samples.items()}


def _max() -> Any:
    from mpi4py import MPI

    return MPI.MAX
