"""Sums in the arena against a reference, for every dtype and awkward counts."""

from __future__ import annotations

import numpy as np
import torch
from mpi4py import MPI

from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.dtypes import DTYPES
from hvd_ext.job.topology import discover

COUNTS = [0, 1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 4095, 4096, 4097, 100_003]


def values(dtype: str, count: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + count)
    made = torch.randn(count, generator=generator, dtype=torch.float64)
    made *= torch.pow(10.0, torch.randint(-6, 4, (count,), generator=generator).double())
    return made.to(getattr(torch, dtype))


def main() -> None:
    topology = discover(MPI.COMM_WORLD, 30)
    size, rank = topology.world.size, topology.world.rank
    specs = [
        ParameterSpec(f"{dtype}{count}", (count,), (1,), dtype)
        for dtype in ("float32", "float64", "float16", "bfloat16")
        for count in COUNTS
    ]
    for scale, bucket_bytes in ((1.0, 1), (1.0 / size, 1 << 20)):
        plan = layout_by_size(specs, bucket_bytes)
        arena = HostArena(topology, plan, scale, BUILT_IN, 30)
        for repetition in range(3):
            views = {}
            for bucket in plan.buckets:
                for slot in bucket.spans:
                    name = specs[slot.parameter].name
                    raw = np.frombuffer(
                        arena.data,
                        np.uint8,
                        slot.count * DTYPES[bucket.dtype].item_bytes,
                        slot.offset_bytes,
                    )
                    views[name] = torch.from_numpy(raw).view(getattr(torch, bucket.dtype))
                    views[name].copy_(values(bucket.dtype, slot.count, rank + repetition))
            for index in range(len(plan.buckets)):
                arena.reduce(index)
            arena.finish()
            for spec in specs:
                check(spec, views[spec.name], [r + repetition for r in range(size)], scale)
            digests = topology.world.allgather(bytes(arena.data))
            assert len(set(digests)) == 1, "ranks hold different bits"
            # A rank must not begin to overwrite what another one still compares.
            topology.world.Barrier()
        arena.close()
    print(f"ok {rank}")


def check(spec: ParameterSpec, got: torch.Tensor, seeds: list[int], scale: float) -> None:
    """Summed in rank order, in 32 bits where the dtype is shorter, and rounded once."""
    short = spec.dtype in ("float16", "bfloat16")
    summed = torch.float32 if short else got.dtype
    total = torch.zeros(spec.count, dtype=summed)
    for index, seed in enumerate(seeds):
        part = values(spec.dtype, spec.count, seed).to(summed)
        total = part if index == 0 else total + part
    expected = (total * torch.tensor(scale, dtype=summed)).to(got.dtype)
    assert torch.equal(got, expected), spec


main()
