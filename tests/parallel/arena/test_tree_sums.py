"""Sums in tree order: the same bits on any division of the ranks into nodes."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_ext.allreduce.algorithms import direct
from hvd_ext.allreduce.algorithms.direct_tree import IN_TREE_ORDER
from hvd_ext.allreduce.table import Row, Table
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.arena.sharded import ShardedArena
from hvd_ext.arithmetic.summation_tree import tree_sum
from hvd_ext.dtypes import DTYPES
from tests.ranks.asserts import parallel_assert
from tests.support.arena.pretended_nodes import COUNTS, pretend

SCALE = 0.3  # no power of two: scaled twice, or too early, it rounds otherwise
SPECS = [
    ParameterSpec(f"{dtype}{count}", (count,), (1,), dtype)
    for dtype in ("float32", "float64")
    for count in COUNTS
]


def terms_of(rank: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((rank, seed))
    return {
        spec.name: np.ldexp(
            rng.standard_normal(spec.count), rng.integers(-9, 9, spec.count)
        ).astype(spec.dtype)
        for spec in SPECS
    }


def views(arena: HostArena) -> dict[str, np.ndarray]:
    return {
        SPECS[span.parameter].name: arena.data[span.offset_bytes :][
            : span.count * DTYPES[bucket.dtype].item_bytes
        ].view(bucket.dtype)
        for bucket in arena.layout.buckets
        for span in bucket.spans
    }


def check(comm, ranks_per_node: int, algorithm: str, bucket_bytes: int, kind=HostArena) -> None:
    topology = pretend(comm, ranks_per_node)
    table = Table((Row(0, 0, "host", ((0, algorithm),)),), "a test")
    layout = layout_by_size(SPECS, bucket_bytes)
    arena = kind(ArenaConfig(topology, table, 60), layout, SCALE, in_tree_order=True)
    places, wrong = views(arena), []
    for seed in range(2):
        for name, term in terms_of(comm.rank, seed).items():
            places[name][:] = term
        for index in range(len(layout.buckets)):
            arena.reduce(index)
        arena.finish()
        if isinstance(arena, ShardedArena):
            arena.give_sums()
        every = [terms_of(rank, seed) for rank in range(comm.size)]
        for spec in SPECS:
            expected = tree_sum([each[spec.name].copy() for each in every], np.add)
            expected = expected * expected.dtype.type(SCALE)
            if expected.tobytes() != places[spec.name].tobytes():
                wrong.append((seed, spec.name))
        comm.Barrier()  # no rank overwrites what another one still compares
    arena.close()
    parallel_assert(comm, not wrong, wrong)


EIGHT = pytest.param(8, marks=pytest.mark.long)


@pytest.mark.ranks(2, 4, EIGHT)
@pytest.mark.parametrize("bucket_bytes", [1 << 10, 32 << 10, 1 << 20])
def test_within_a_node(comm, bucket_bytes):
    check(comm, comm.size, "native", bucket_bytes)
    check(comm, comm.size, "native", bucket_bytes, ShardedArena)


@pytest.mark.ranks(4, EIGHT)
@pytest.mark.parametrize("algorithm", [*IN_TREE_ORDER, "ring"])
@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_between_nodes_whatever_the_table_names(comm, monkeypatch, ranks_per_node, algorithm):
    monkeypatch.setattr(direct, "count_pieces", lambda size, n, *most: max(1, n // (4096 * size)))
    check(comm, ranks_per_node, algorithm, 64 << 10)
