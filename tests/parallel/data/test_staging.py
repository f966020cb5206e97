"""Nodes that read a file once together; each rank has a disk of its own, and so is a node."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hvd_ext.cli import progress
from hvd_ext.data import PackedFile, Tables
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.sources import Arrays
from hvd_ext.data.staging import sharing, staging
from hvd_ext.data.staging.private_files import private_folder
from hvd_ext.errors import HvdExtError, UsageError
from tests.conftest import Launch
from tests.ranks.asserts import parallel_assert
from tests.support.data.crafted_packs import Crafted
from tests.support.data.packed_by_rank_0 import packed_by_rank_0

if TYPE_CHECKING:
    from mpi4py import MPI

SAMPLES, PIECE, NODES = 20, 40_000, 4
Open = Callable[..., PackedFile]


def samples() -> Arrays:
    return Arrays({"x": np.random.default_rng(0).integers(0, 9, (SAMPLES, 5000), np.int32)})


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A packed file of eleven pieces."""
    monkeypatch.setattr(staging, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(staging, "_LOOK_EVERY_S", 0.01)
    with packed_by_rank_0(samples()) as path:
        yield path


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder of this rank's own."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def opened(comm: MPI.Comm, path: Path, disk: Path) -> Iterator[Open]:
    """`opened(share, folder)`: the file, whose tables rank 0 has read, with a copy begun."""
    files = []
    tables = comm.bcast(Tables.read(path) if comm.rank == 0 else None)

    def opened(share: bool = True, folder: Path = disk) -> PackedFile:
        nodes = comm if share else None
        files.append(PackedFile(path, tables, stage_to=folder, share_staging=nodes))
        return files[-1]

    yield opened
    for file in files:
        file.close()


def read_by_all(comm: MPI.Comm, file: PackedFile) -> int:
    """Bytes that all ranks took from the source, once each has its copy."""
    assert file.copy
    parallel_assert(comm, file.copy.wait(60), "the copy is not whole")
    assert file.copy.path.read_bytes() == file.path.read_bytes()
    return comm.allreduce(file.bytes_read)


@pytest.mark.ranks(NODES)
def test_the_source_is_read_once_for_all_nodes(comm: MPI.Comm, disk: Path, opened: Open) -> None:
    each = opened(share=False, folder=disk / "each")
    file_bytes = each.path.stat().st_size
    parallel_assert(comm, read_by_all(comm, each) == NODES * file_bytes)

    file = opened()
    while_staged = [np.array_equal(file[i]["x"], each[i]["x"]) for i in range(SAMPLES)]
    parallel_assert(comm, all(while_staged), "other samples")
    read = read_by_all(comm, file)
    afterwards = [np.array_equal(file[i]["x"], each[i]["x"]) for i in range(SAMPLES)]
    parallel_assert(comm, all(afterwards), "other samples")
    parallel_assert(comm, comm.allreduce(file.bytes_read) == read, "the source is read again")

    # Two ranks a node: one of them takes part, and both read its copy.
    shared = Path(comm.bcast(str(disk), 0)) / f"{comm.rank // 2}"
    read = read_by_all(comm, opened(folder=shared))
    parallel_assert(comm, read == file_bytes, f"{read} of {file_bytes}")
    # A later job finds them.
    parallel_assert(comm, read_by_all(comm, opened(folder=shared)) == 0)


@pytest.mark.ranks(NODES)
def test_a_node_that_is_new_or_lacks_some_gets_what_it_lacks(
    comm: MPI.Comm, disk: Path, opened: Open
) -> None:
    read_by_all(comm, opened(folder=disk / "a"))
    if comm.rank == 1:
        shutil.rmtree(disk / "a")
    if comm.rank == 2:
        marks = next((disk / "a").glob("*/*.pieces"))
        marks.write_bytes(marks.read_bytes()[:3] + bytes(2) + marks.read_bytes()[5:])
    file = opened(folder=disk / "a")
    read = read_by_all(comm, file)
    parallel_assert(comm, read == file.path.stat().st_size, f"{read}")
    # Rank 2 read those that both lack.
    shares = comm.allgather(file.bytes_read)
    parallel_assert(comm, shares == [0, read - 2 * PIECE, 2 * PIECE, 0], f"{shares}")


@pytest.mark.ranks(NODES)
def test_a_copy_that_is_damaged_is_named_and_what_comes_damaged_is_read_again(
    comm: MPI.Comm, opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sealed = sharing._check
    if comm.rank == 0:  # it reads the first piece
        first = iter([np.zeros(4, np.uint8)])
        monkeypatch.setattr(sharing, "_check", lambda data: next(first, sealed(data)))
    file = opened()
    read = read_by_all(comm, file)
    expected = file.path.stat().st_size + 3 * PIECE
    parallel_assert(comm, read == expected, f"{read} of {expected}")
    said = "piece 0 was damaged on its way from " in caplog.text
    parallel_assert(comm, said == (comm.rank > 0), caplog.text)

    assert file.copy
    if comm.rank == 2:
        with file.copy.path.open("r+b") as stream:
            stream.seek(int(file.tables.places[7, 0]) + 100)
            stream.write(b"\xff\xff")
        with pytest.raises(UsageError, match=rf"{file.copy.path}: sample 7 .* delete this copy"):
            file[7]
    else:
        assert len(file[7]["x"]) == 5000


@pytest.mark.ranks(NODES)
def test_a_disk_that_fails_does_not_keep_the_pieces_from_the_others(
    comm: MPI.Comm, opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = staging._write

    def gone(descriptor: int, data: np.ndarray, offset: int) -> None:
        if comm.rank == 2 and offset > PIECE:
            raise OSError(5, "the disk is gone")
        written(descriptor, data, offset)

    monkeypatch.setattr(staging, "_write", gone)
    file = opened()
    assert file.copy
    whole = file.copy.wait(60)
    parallel_assert(comm, whole == (comm.rank != 2))
    parallel_assert(comm, ("the disk is gone" in caplog.text) == (comm.rank == 2), caplog.text)
    read = comm.allreduce(file.bytes_read)
    parallel_assert(comm, read == file.path.stat().st_size, f"{read}")
    assert all(len(file[i]["x"]) == 5000 for i in range(SAMPLES))


@pytest.mark.ranks(NODES)
def test_a_node_without_space_or_disk_is_one_line_on_every_rank(
    comm: MPI.Comm, disk: Path, opened: Open
) -> None:
    small = disk / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    refused = comm.rank == 3 and subprocess.run(mount, capture_output=True, check=False).returncode
    if any(comm.allgather(refused)):
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(HvdExtError, match=r"small on .* has 6. KiB free, and .* to be copied"):
            opened(folder=small)
        left = list(small.iterdir())
    finally:
        if comm.rank == 3:
            subprocess.run(["umount", str(small)], check=True)
    parallel_assert(comm, not left, f"{left} is left")

    missing = disk / "missing"
    if comm.rank == 1:
        missing.touch()
    with pytest.raises(HvdExtError, match=r"cannot stage to .*missing on .*: name another folder"):
        opened(folder=missing)
    parallel_assert(comm, comm.rank == 1 or not list(missing.iterdir()), "something is left")


@pytest.mark.ranks(NODES)
def test_a_folder_or_file_that_one_rank_cannot_trust_is_one_line_on_every_rank(
    comm: MPI.Comm, path: Path, disk: Path, opened: Open
) -> None:
    if comm.rank == 2:
        private_folder(disk / "open").mkdir(0o755, parents=True)
    with pytest.raises(HvdExtError, match=r"open/.* cannot be trusted: .* with mode 755, not 700"):
        opened(folder=disk / "open")

    # A file that one rank alone sees damaged is so for all.
    crafted = Crafted.of(path)
    crafted.header["fields"][0]["dtype"] = "|O"
    seen = disk / "seen.pack"
    seen.write_bytes(crafted.encode() if comm.rank == 2 else path.read_bytes())
    with pytest.raises(UsageError, match=r"has the dtype '.O': use one of numbers"):
        PackedFile(seen, stage_to=disk / "b", share_staging=comm)
    parallel_assert(comm, not (disk / "b").exists(), "something is left")


@pytest.mark.ranks(NODES)
def test_a_rank_that_closes_early_holds_nobody_up(
    comm: MPI.Comm, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    written = staging._write

    def slowly(descriptor: int, data: np.ndarray, offset: int) -> None:
        begun.set()
        go_on.wait(60)
        written(descriptor, data, offset)

    monkeypatch.setattr(staging, "_write", slowly)
    file = opened()
    begun.wait(60)
    comm.Barrier()
    assert file.copy
    if comm.rank == 1:
        file.copy._closing.set()
    go_on.set()
    # The others make their copies by themselves.
    parallel_assert(comm, file.copy.wait(60) == (comm.rank != 1))
    parallel_assert(comm, comm.rank == 1 or file.copy.path.read_bytes() == file.path.read_bytes())


def test_a_job_that_was_killed_half_way_goes_on_with_what_lacks(
    launch: Launch, tmp_path: Path
) -> None:
    path = tmp_path / "a.pack"
    with progress("packing", shown=False) as advance:
        pack(samples(), path, advance)
    program = ("tests/programs/data/staged_by_nodes.py", path, tmp_path, PIECE)
    done = launch(NODES, (*program, "killed"))
    assert done.returncode == 128 + signal.SIGKILL, done.stdout
    marks = [folder.read_bytes() for folder in tmp_path.glob("node*/*/*.pieces")]
    lacks = [b"\0" in column for column in map(bytes, zip(*marks, strict=True))]
    assert 0 < sum(lacks) < len(lacks)
    done = launch(NODES, program)
    assert done.returncode == 0, done.stdout
    pieces = range(0, path.stat().st_size, PIECE)
    lengths = [min(PIECE, path.stat().st_size - begin) for begin in pieces]
    expected = sum(length for length, lack in zip(lengths, lacks, strict=True) if lack)
    assert f"{expected} bytes were read" in done.stdout
    copies = list(tmp_path.glob("node*/*/*.pack"))
    assert len(copies) == NODES
    assert all(copy.read_bytes() == path.read_bytes() for copy in copies)
