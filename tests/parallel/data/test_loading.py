"""Packed files and loaders on real ranks: what is read, and how a run goes on elsewhere."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hvd_ext.cli import progress
from hvd_ext.data import DataLoader, Order, PackedFile, Tables
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.sources import Arrays
from tests.conftest import Launch
from tests.ranks.asserts import parallel_assert
from tests.support.data.packed_by_rank_0 import packed_by_rank_0

if TYPE_CHECKING:
    from mpi4py import MPI

SAMPLES = 24


@pytest.fixture
def path() -> Iterator[Path]:
    """A packed file of samples of 1.2 MiB, made by rank 0."""
    array = np.random.default_rng(0).integers(0, 9, (SAMPLES, 300_000), np.int32)
    with packed_by_rank_0(Arrays({"x": array})) as path:
        yield path


def shifted(sample: dict[str, Any], rng: np.random.Generator) -> int:
    """What is left of a sample and its random numbers: the checksum of both."""
    return zlib.crc32(np.roll(sample["x"], rng.integers(1000)).tobytes())


@pytest.mark.ranks(pytest.param(1, marks=pytest.mark.long), 4)
def test_the_ranks_read_the_tables_and_each_record_once(comm: MPI.Comm, path: Path) -> None:
    tables = comm.bcast(Tables.read(path) if comm.rank == 0 else None)
    with PackedFile(path, tables) as file:
        order = Order(len(file), seed=1)
        loader = DataLoader(
            file, 2, order, rank=comm.rank, size=comm.size, num_workers=2, prefetch_factor=0
        )
        numbers = [int(value) for batch in loader for value in batch["x"][:, 0]]
        assert len(numbers) == SAMPLES // comm.size
        records = int(tables.places[:, 1].sum())
        read = comm.allreduce(loader.statistics().bytes_read)
        parallel_assert(comm, read == records, f"{read} of {records}")


@pytest.mark.ranks(4)
def test_a_run_goes_on_on_fewer_ranks_with_the_same_augmented_samples(
    comm: MPI.Comm, path: Path
) -> None:
    with PackedFile(path) as file:
        order = Order(len(file), seed=1, data=file.fingerprint)

        def run(state: dict[str, Any], ranks: int, local: int, steps: int) -> tuple[Any, Any]:
            """The row of all ranks, on the first `ranks` of them, and the state behind it."""
            mine: list[list[int]] = [[] for _ in range(steps)]
            if comm.rank < ranks:
                loader = DataLoader(
                    file, local, order, rank=comm.rank, size=ranks, transform=shifted
                )
                loader.load_state_dict(state)
                mine = [[int(x) for x in next(loader)] for _ in range(steps)]
                state = loader.state_dict()
                loader.close()
            parts = comm.allgather(mine)
            return [x for step in zip(*parts, strict=True) for p in step for x in p], state

        before, state = run(order.state(0), 4, 3, 3)  # in the middle of the second epoch
        expected, _ = run(order.state(0), 1, 12, 6)
        for ranks, local in ((1, 5), (2, 4), (3, 2), (4, 3)):
            after, _ = run(state, ranks, local, 3)
            whole = before + after
            parallel_assert(comm, whole == expected[: len(whole)] and after, f"{ranks} ranks")


@pytest.mark.parametrize("how", [pytest.param("killed", marks=pytest.mark.long), "damaged"])
def test_a_rank_that_ends_in_an_exchange_is_named_and_ends_all(
    launch: Launch, tmp_path: Path, how: str
) -> None:
    array = np.random.default_rng(0).integers(0, 9, (8, 10_000), np.int32)
    path = tmp_path / "a.pack"
    with progress("packing", shown=False) as advance:
        pack(Arrays({"x": array}), path, advance)
    with PackedFile(path) as file:
        first = Order(8, 1).sample(5)  # of rank 1
        damaged = int(file.tables.places[first, 0]) + 9
    if how == "damaged":
        with path.open("r+b") as stream:
            stream.seek(damaged)
            stream.write(b"\xff")
    done = launch(2, ("tests/programs/data/store_that_fails.py", path, how), timeout=60)
    assert "Traceback" not in done.stdout
    assert done.returncode == (2 if how == "damaged" else 128 + 9), done.stdout
    if how == "damaged":
        # The rank that waits for the sample learns why it does not come, and may end as well.
        lines = [line for line in done.stdout.splitlines() if "error: rank" in line]
        assert lines, done.stdout
        assert all(f"{path}: sample {first} (sample {first}) is damaged" in line for line in lines)
    else:
        assert "rank 1" in done.stdout
