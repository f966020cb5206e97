"""Samples kept in the ranks' memory: who reads, who sends, and that all get what is on file."""

from __future__ import annotations

import gc
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from hvd_ext.data import DataLoader, Order, PackedFile
from hvd_ext.data.packed.layout import Field
from hvd_ext.data.packed.sources import Arrays
from hvd_ext.data.store import store
from hvd_ext.errors import HvdExtError
from hvd_ext.units import MIB
from tests.parallel.job.test_node_arrays import proportional_bytes
from tests.parallel.job.test_regions import memory_files
from tests.ranks.asserts import parallel_assert
from tests.support.data.packed_by_rank_0 import damage, error_of, packed_by_rank_0

if TYPE_CHECKING:
    from mpi4py import MPI

SAMPLES = 21
EPOCHS = 1000 if "HVD_EXT_TEST_SWEEP" in os.environ else 80


class Uneven:
    """Samples of 0 to some 200 KB."""

    fields = (Field("number", "array", "<i8"), Field("image", "bytes"))
    classes, names = (), ()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> dict[str, Any]:
        rng = np.random.default_rng(sample)
        return {"number": np.int64(sample), "image": rng.bytes(sample * sample * 500)}


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    """A packed file, made by rank 0."""
    with packed_by_rank_0(Uneven()) as path:
        yield path


@pytest.fixture(params=[1, 2], ids=["1 rank a node", "2 ranks a node"])
def nodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many ranks are told that they share memory."""
    each = int(request.param)
    monkeypatch.setattr(store, "sharing_memory", lambda comm: comm.Split(comm.rank // each))
    return each


def seen(sample: dict[str, Any], rng: np.random.Generator) -> tuple[int, int]:
    """The number, and a checksum of what was on file and of random numbers."""
    return int(sample["number"]), zlib.crc32(sample["image"] + rng.bytes(4))


def expected(order: Order, position: int) -> tuple[int, int]:
    return seen(Uneven()[order.sample(position)], order.rng(position))


def tuples(batch: list[Any]) -> list[Any]:
    return batch


@pytest.mark.ranks(1, 2, 4)
@pytest.mark.parametrize("ahead", [0, 2])
def test_each_record_is_read_once_and_what_is_sent_is_what_is_needed_elsewhere(
    comm: MPI.Comm, path: Path, nodes: int, ahead: int
) -> None:
    with PackedFile(path) as file:
        order = Order(SAMPLES, seed=3)
        tables = comm.allreduce(file.bytes_read)
        loader = DataLoader(
            file, 2, order, rank=comm.rank, size=comm.size, transform=seen, collate_fn=tuples,
            num_workers=2, prefetch_factor=ahead, store="memory", comm=comm,
        )  # fmt: skip
        steps = -(-4 * SAMPLES // loader.global_batch)
        everyones = comm.allgather([next(loader) for _ in range(steps)])
        row = [x for step in zip(*everyones, strict=True) for part in step for x in part]
        right = [expected(order, position) for position in range(len(row))]
        parallel_assert(comm, row == right, "other samples")
        loader.close()  # what was sent ahead has arrived
        did = loader.statistics()
        read = comm.allreduce(file.bytes_read) - tables
        parallel_assert(comm, read == int(file.lengths.sum()), f"{read} bytes were read")

        # By hand: a node has a sample once one of its ranks has read it, the others ask for it.
        first_user: dict[int, int] = {}
        crossed = [[0, 0] for _ in range(comm.size)]
        began = len(row) + ahead * loader.global_batch
        for position in range(began):
            sample, user = order.sample(position), position % loader.global_batch // 2
            owner = first_user.setdefault(sample, user)
            if owner // nodes != user // nodes:
                crossed[owner][0] += int(file.lengths[sample])
                crossed[user][1] += int(file.lengths[sample])
        measured = [did.bytes_sent, did.bytes_received]
        parallel_assert(comm, measured == crossed[comm.rank], f"{measured} {crossed[comm.rank]}")


@pytest.mark.ranks(2, 4)
def test_what_does_not_fit_is_read_again_and_a_node_has_no_more_than_it_may(
    comm: MPI.Comm, path: Path, nodes: int
) -> None:
    with PackedFile(path) as file:
        order = Order(SAMPLES, seed=3)
        before = file.bytes_read
        loader = DataLoader(
            file, 1, order, rank=comm.rank, size=comm.size, transform=seen, collate_fn=tuples,
            prefetch_factor=0, store=300_000, comm=comm,
        )  # fmt: skip
        loader.start()
        assert loader.store
        size = loader.store.size
        assert size.node_bytes <= 300_000 * nodes
        assert size.kept_bytes <= 300_000 * comm.size < size.samples_bytes
        assert f"{size.kept_bytes / size.samples_bytes:.0%} of" in str(size)
        assert "are read again whenever they are needed" in str(size)
        epochs = 4
        for number in range(epochs * SAMPLES // comm.size):
            position = number * comm.size + comm.rank
            assert next(loader) == [expected(order, position)]
        comm.Barrier()
        loader.close()
        # What is kept once, the rest in each epoch.
        row = [order.sample(p) for p in range(number * comm.size + comm.size)]
        again = sum(int(file.lengths[s]) for s in row) - epochs * size.kept_bytes
        if len(row) == epochs * SAMPLES:
            read = comm.allreduce(file.bytes_read - before)
            parallel_assert(comm, read == again + size.kept_bytes, f"{read} {again} {size}")


@pytest.mark.ranks(4)
def test_a_run_goes_on_on_other_ranks_from_their_stores(
    comm: MPI.Comm, path: Path, nodes: int
) -> None:
    with PackedFile(path) as file:
        order = Order(SAMPLES, seed=1, data=file.fingerprint)
        position, row = 0, []
        for ranks, local in ((4, 3), (1, 5), (2, 4), (3, 2)):
            part = comm.Split(comm.rank < ranks)
            mine: list[Any] = [[], [], []]
            if comm.rank < ranks:
                loader = DataLoader(
                    file, local, order, rank=part.rank, size=ranks, transform=seen,
                    collate_fn=tuples, store="memory", comm=part,
                )  # fmt: skip
                loader.load_state_dict(order.state(position))
                mine = [next(loader) for _ in range(3)]
                assert loader.state_dict()["position"] == position + 3 * ranks * local
                loader.close()
            part.Free()
            position += 3 * ranks * local
            row += [x for step in zip(*comm.allgather(mine), strict=True) for p in step for x in p]
        parallel_assert(comm, row == [expected(order, p) for p in range(position)], "other samples")


@pytest.mark.long
@pytest.mark.ranks(8)
def test_memory_is_that_of_the_set_and_what_was_received(comm: MPI.Comm) -> None:
    class Records:
        each, count = 2**18, 512
        lengths = np.full(count, each)

        def __getitem__(self, sample: int) -> np.ndarray:
            return self.record(sample)

        def record(self, sample: int) -> np.ndarray:
            return np.full(self.each, sample % 251, np.uint8)

        def decode(self, sample: int, record: np.ndarray) -> np.ndarray:
            return record

    def grown(epochs: int) -> tuple[int, int, int]:
        loader = DataLoader(
            Records(), 1, Order(Records.count, 1), rank=comm.rank, size=8, num_workers=1,
            collate_fn=lambda x: int(x[0][0]), prefetch_factor=1, store="memory", comm=comm,
        )  # fmt: skip
        gc.collect()
        before = comm.allreduce(proportional_bytes())
        total = sum(next(loader) for _ in range(epochs * Records.count // 8))
        assert loader.store
        ring = comm.allreduce(loader.store.size.ahead_bytes)
        comm.Barrier()
        after = comm.allreduce(proportional_bytes())
        comm.Barrier()
        loader.close()
        return total, ring, after - before

    grown(1)  # what MPI and Python take once does not count
    total, ring, count = grown(2)
    expected = Records.count * Records.each
    right = 2 * sum(sample % 251 for sample in range(Records.count))
    parallel_assert(comm, comm.allreduce(total) == right, f"{total}")
    parallel_assert(comm, ring == 8 * 2 * Records.each, f"{ring}")
    parallel_assert(comm, 0.95 * expected < count < 1.05 * expected + ring, f"{count}")


@pytest.mark.long
@pytest.mark.ranks(8, timeout_s=120 + EPOCHS)
def test_many_epochs_take_no_memory_and_waiting_takes_no_core(
    comm: MPI.Comm, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "sharing_memory", lambda comm: comm.Split(comm.rank // 2))
    process, rounds = psutil.Process(), 4
    with PackedFile(path) as file:
        before = file.bytes_read
        loader = DataLoader(
            file, 3, Order(SAMPLES, seed=3), rank=comm.rank, size=8, transform=seen,
            collate_fn=tuples, num_workers=1, store="memory", comm=comm,
        )  # fmt: skip
        held = []
        for _ in range(rounds):
            for _ in range(EPOCHS // rounds):
                list(loader)
                comm.Barrier()  # ranks that train keep step
            gc.collect()
            held.append((process.memory_info().rss, process.num_fds()))
        resident, descriptors = zip(*held, strict=True)
        # The MPI library's pools fill up first.
        parallel_assert(comm, resident[-1] - resident[1] < 4 * MIB, f"{resident}")
        parallel_assert(comm, descriptors[-1] == descriptors[0], f"{descriptors}")
        read = comm.allreduce(file.bytes_read - before)
        parallel_assert(comm, read == int(file.lengths.sum()), f"{read} bytes were read")

        # What rank 0 has not begun is waited for.
        waited_s = loader.statistics().wait_s
        if comm.rank == 0:
            time.sleep(2)
        began_s = time.process_time()
        for _ in range(5):
            list(loader)
        took_s = comm.allreduce(time.process_time() - began_s)
        waited_s = comm.allreduce(loader.statistics().wait_s - waited_s)
        parallel_assert(comm, took_s < 0.1 * waited_s, f"computed {took_s} s in {waited_s} s")
        loader.close()


@pytest.mark.ranks(3)
def test_more_memory_than_there_is_is_refused_by_all_ranks_alike(comm: MPI.Comm) -> None:
    class Huge:
        lengths = np.full(10, 2**42)

        def __getitem__(self, sample: int) -> None: ...

        def record(self, sample: int) -> None: ...

    loader = DataLoader(
        Huge(), 1, Order(10, 1), rank=comm.rank, size=3, store=2**50, comm=comm
    )  # fmt: skip
    with pytest.raises(HvdExtError, match=r"has .* free: give a smaller size, or use more nodes"):
        next(loader)


@pytest.mark.ranks(2)
def test_a_rank_without_memory_leaves_no_file_open_on_any(
    comm: MPI.Comm, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(fd: int, offset: int, count: int) -> None:
        if comm.rank == 1 and count > 4096:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", take)
    before = memory_files()
    with PackedFile(path) as file:
        loader = DataLoader(
            file, 1, Order(SAMPLES, 1), rank=comm.rank, size=2, store=300_000, comm=comm
        )
        for _ in range(2):
            with pytest.raises(HvdExtError, match="No space left on device") as caught:
                next(loader)
            del caught
    parallel_assert(comm, memory_files() == before, f"{memory_files()} files, {before} before")


@pytest.mark.ranks(2)
def test_a_rank_that_does_not_come_is_named(
    comm: MPI.Comm, path: Path, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVD_EXT_STALL_TIMEOUT_S", "0.5")
    ended: list[Exception] = []
    monkeypatch.setattr("hvd_ext.data.store.exchange.end_job", ended.append)
    with PackedFile(path) as file:
        loader = DataLoader(
            file, 3, Order(SAMPLES, 1), rank=comm.rank, size=2, prefetch_factor=0,
            store="memory", comm=comm, collate_fn=tuples,
        )  # fmt: skip
        next(loader)
        if comm.rank == 0:
            list(loader)  # the first epoch, in which each sample is read by whoever needs it
            with pytest.raises(HvdExtError, match=r"rank 1 \(.*\) did not reach an exchange of"):
                list(loader)
            assert ended
        comm.Barrier()


@pytest.mark.ranks(3)
def test_ranks_of_a_node_need_not_keep_step(comm: MPI.Comm, path: Path) -> None:
    with PackedFile(path) as file:
        order = Order(SAMPLES, seed=3)
        loader = DataLoader(
            file, 2, order, rank=comm.rank, size=3, transform=seen, collate_fn=tuples,
            store="memory", comm=comm,
        )  # fmt: skip
        steps = 40 * SAMPLES // loader.global_batch
        mine = [next(loader) for _ in range(4)]  # all are read, but for what is read ahead
        for rank in range(comm.size):
            if rank == comm.rank:
                mine += [next(loader) for _ in range(4, steps)]
            comm.Barrier()
        row = [x for step in zip(*comm.allgather(mine), strict=True) for part in step for x in part]
        right = [expected(order, position) for position in range(len(row))]
        parallel_assert(comm, row == right, "other samples")
        loader.close()


@pytest.mark.ranks(2)
def test_a_sample_that_cannot_be_read_is_an_error_of_all_that_need_it(
    comm: MPI.Comm, nodes: int
) -> None:
    def twice(order: Order) -> bool:
        """Whether rank 0 reads a sample that rank 1 needs in the same step, the first."""
        return order.sample(3) in (order.sample(0), order.sample(1))

    order = next(order for seed in range(100) if twice(order := Order(3, seed)))
    with packed_by_rank_0(Arrays({"x": np.ones((3, 1000), np.int32)})) as path:
        if comm.rank == 0:
            damage(path, order.sample(3))
        comm.Barrier()
        with PackedFile(path) as file:
            loader = DataLoader(
                *(file, 2, order), rank=comm.rank, size=2, store="memory", comm=comm
            )
            said = error_of(loader)
            loader.close()
    parallel_assert(comm, "is damaged: its checksum differs" in said, said)
