"""Sums in the arena against a reference, for every dtype and awkward counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.dtypes import DTYPES
from tests.ranks.asserts import assert_same_bits

COUNTS = [0, 1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 4095, 4096, 4097, 100_003]


def values(dtype: str, count: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + count)
    made = torch.randn(count, generator=generator, dtype=torch.float64)
    made *= torch.pow(10.0, torch.randint(-6, 4, (count,), generator=generator).double())
    return made.to(getattr(torch, dtype))


@pytest.mark.ranks(3, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 2, 4)))
@pytest.mark.parametrize(
    ("averaged", "bucket_bytes"), [(False, 1), (True, 1 << 20)], ids=["sum", "average"]
)
def test_sums_are_exact_and_equal_on_all_ranks(topology, averaged, bucket_bytes):
    size, rank = topology.world.size, topology.world.rank
    scale = 1.0 / size if averaged else 1.0
    specs = [
        ParameterSpec(f"{dtype}{count}", (count,), (1,), dtype)
        for dtype in ("float32", "float64", "float16", "bfloat16")
        for count in COUNTS
    ]
    plan = layout_by_size(specs, bucket_bytes)
    arena = HostArena(ArenaConfig(topology, BUILT_IN, 30), plan, scale)
    for repetition in range(3):
        views = {}
        for bucket in plan.buckets:
            for span in bucket.spans:
                count_bytes = span.count * DTYPES[bucket.dtype].item_bytes
                raw = np.frombuffer(arena.data, np.uint8, count_bytes, span.offset_bytes)
                view = torch.from_numpy(raw).view(getattr(torch, bucket.dtype))
                view.copy_(values(bucket.dtype, span.count, rank + repetition))
                views[specs[span.parameter].name] = view
        for index in range(len(plan.buckets)):
            arena.reduce(index)
        arena.finish()
        for spec in specs:
            check(spec, views[spec.name], [r + repetition for r in range(size)], scale)
        # No rank begins to overwrite what another one still compares.
        assert_same_bits(topology.world, np.frombuffer(arena.data, np.uint8))
        topology.world.Barrier()
    arena.close()


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
