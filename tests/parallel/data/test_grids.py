"""Samples shared by grids of ranks: their blocks are slices, and each byte is read once a group."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hvd_ext.data import DataLoader, Order, PackedFile
from hvd_ext.data.packed.sources import Arrays
from hvd_ext.spatial import ProcessGrid
from tests.ranks.asserts import parallel_assert
from tests.support.data.packed_by_rank_0 import damage, error_of, packed_by_rank_0
from training.samples.blocks import Blocks

if TYPE_CHECKING:
    from mpi4py import MPI

SAMPLES, AHEAD = 5, 2
GRIDS = {
    # The last ones do not divide the extents.
    4: [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (4, 1, 1), (1, 4, 1), (1, 1, 4)],
    3: [(3, 1, 1), (1, 3, 1), (1, 1, 3)],
}
KEPT = pytest.mark.parametrize("kept", [None, "memory", 1_000_000])


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    """Samples of two MiB and a bit, and labels that every rank needs whole."""
    rng = np.random.default_rng(0)
    cubes = rng.integers(0, 9, (SAMPLES, 2, 31, 110, 161), np.int16)
    return {"cubes": cubes, "labels": rng.random((SAMPLES, 3))}


@pytest.fixture(scope="module")
def path(arrays: dict[str, np.ndarray]) -> Iterator[Path]:
    with packed_by_rank_0(Arrays(arrays)) as path:
        yield path


def digests(batch: list[Any]) -> list[int]:
    return [zlib.crc32(np.ascontiguousarray(block)) for block in batch[0]]


@pytest.mark.ranks(pytest.param(3, marks=pytest.mark.long), 4)
@KEPT
def test_blocks_are_slices_and_each_byte_is_read_once_a_group(
    comm: MPI.Comm, arrays: dict[str, np.ndarray], path: Path, kept: Any
) -> None:
    order = Order(SAMPLES, seed=1)
    for shape in GRIDS[comm.size]:
        grid = ProcessGrid(*shape, comm=comm)
        group = comm.Split(comm.rank // prod(shape))
        sharing = comm.Split(comm.rank % prod(shape))
        block = tuple(
            slice(extent * at // parts, extent * (at + 1) // parts)
            for extent, at, parts in zip(
                arrays["cubes"].shape[2:], grid.coordinates(3), shape, strict=True
            )
        )
        with PackedFile(path) as file:
            for name, sources in (
                ("npy", (arrays["cubes"], arrays["labels"])),
                ("pack", (file.field("cubes"), file.field("labels"))),
            ):
                before = file.bytes_read
                blocks = Blocks(sources, grid, np.arange(SAMPLES), group)
                loader = DataLoader(
                    blocks, 1, order, rank=grid.sample_group, size=grid.sample_groups,
                    collate_fn=digests, num_workers=2, prefetch_factor=AHEAD, store=kept,
                    comm=sharing,
                )  # fmt: skip
                steps = -(-3 * SAMPLES // grid.sample_groups)
                found = [next(loader) for _ in range(steps)]
                positions = [k * grid.sample_groups + grid.sample_group for k in range(steps)]
                expected = [
                    digests([[arrays["cubes"][(s, slice(None), *block)], arrays["labels"][s]]])
                    for s in map(order.sample, positions)
                ]
                parallel_assert(comm, found == expected, f"{name} {shape}: other blocks")
                uses = (steps + AHEAD) * grid.sample_groups
                loader.close()
                blocks.close()
                read = comm.allreduce(file.bytes_read - before)
                once = int(file.lengths.sum())
                if name == "pack" and kept == "memory":
                    parallel_assert(comm, read == once, f"{shape}: {read} of {once}")
                elif name == "pack" and kept is None:
                    each = uses * int(file.lengths[0])
                    parallel_assert(comm, read == each, f"{shape}: {read} of {each}")
                elif name == "pack":  # some are kept, some are read again
                    parallel_assert(comm, read % file.lengths[0] == 0 and read >= once, f"{read}")
        group.Free()
        sharing.Free()


@pytest.mark.ranks(2)
@KEPT
def test_a_damaged_part_is_an_error_of_all_ranks_of_the_group_that_need_it(
    comm: MPI.Comm, kept: Any
) -> None:
    order, grid = Order(SAMPLES, seed=1), ProcessGrid(1, 1, comm.size, comm=comm)
    cubes = np.zeros((SAMPLES, 1, 10, 10, 10), np.int16)  # one MiB, which one rank reads for both
    with packed_by_rank_0(Arrays({"cubes": cubes, "labels": np.zeros((SAMPLES, 3))})) as path:
        if comm.rank == 0:
            damage(path, order.sample(2))
        comm.Barrier()
        with PackedFile(path) as file:
            fields = (file.field("cubes"), file.field("labels"))
            blocks = Blocks(fields, grid, np.arange(SAMPLES), comm)
            loader = DataLoader(blocks, 1, order, store=kept, comm=comm.Split(comm.rank))
            next(loader), next(loader)
            said = error_of(loader)
            loader.close()
            blocks.close()
    parallel_assert(comm, "is damaged: its checksum differs" in said, said)
