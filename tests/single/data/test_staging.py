"""A copy on the node's own disk: made once, gone on with, and found damaged."""

from __future__ import annotations

import os
import pickle
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_ext.cli import progress
from hvd_ext.data import PackedFile
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.sources import Arrays
from hvd_ext.data.staging import staging
from hvd_ext.data.staging.private_files import private_folder
from hvd_ext.data.staging.rounds import NO_PIECE, reading_rounds
from hvd_ext.errors import HvdExtError, UsageError
from tests.support.data.crafted_packs import Crafted

SAMPLES, PIECE = 20, 40_000


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(staging, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(staging, "_LOOK_EVERY_S", 0.01)
    array = np.random.default_rng(0).integers(0, 9, (SAMPLES, 5000), np.int32)
    with progress("packing", shown=False) as advance:
        pack(Arrays({"x": array}), tmp_path / "a.pack", advance)
    return tmp_path / "a.pack"


def copied(file: PackedFile) -> Path:
    assert file.copy
    assert file.copy.wait(60)
    return file.copy.path


def test_one_of_several_copies_the_file_and_all_read_the_copy(path: Path, tmp_path: Path) -> None:
    with PackedFile(path) as whole:
        tables, expected = whole.tables, [whole[i]["x"] for i in range(SAMPLES)]
    files = [PackedFile(path, tables, stage_to=tmp_path / "node") for _ in range(3)]
    for file in files:
        assert copied(file).read_bytes() == path.read_bytes()
    assert sum(file.bytes_read for file in files) == path.stat().st_size
    # One that comes later, here from another process, finds it.
    files.append(pickle.loads(pickle.dumps(files[0])))
    copied(files[-1])
    for file in files:
        assert all(np.array_equal(file[i]["x"], expected[i]) for i in range(SAMPLES))
        file.close()
    assert sum(file.bytes_read for file in files) == path.stat().st_size


def test_what_was_copied_before_it_ended_is_not_copied_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = tmp_path / "node", staging._write

    def full_after_three(descriptor: int, data: np.ndarray, offset: int) -> None:
        if offset >= 3 * PIECE:
            raise OSError(5, "the disk is gone")
        written(descriptor, data, offset)

    with PackedFile(path) as whole:
        tables = whole.tables
    monkeypatch.setattr(staging, "_write", full_after_three)
    with PackedFile(path, tables, stage_to=folder) as file:
        assert file.copy
        assert not file.copy.wait(60)
        assert file.bytes_read == 4 * PIECE
        # Training goes on: some samples come from the copy, the others from the file.
        assert all(len(file[i]["x"]) == 5000 for i in range(SAMPLES))
        assert file.copy.reader.bytes_read > 3 * PIECE
    monkeypatch.setattr(staging, "_write", written)
    with PackedFile(path, tables, stage_to=folder) as file:
        assert copied(file).read_bytes() == path.read_bytes()
        assert file.bytes_read == path.stat().st_size - 3 * PIECE


def test_a_damaged_copy_is_named(path: Path, tmp_path: Path) -> None:
    with PackedFile(path, stage_to=tmp_path / "node") as file:
        copy = copied(file)
        with copy.open("r+b") as stream:
            stream.seek(int(file.tables.places[7, 0]) + 100)
            stream.write(b"\xff\xff")
        with pytest.raises(UsageError, match=rf"{copy}: sample 7 .* delete this copy"):
            file[7]
        assert len(file[8]["x"]) == 5000


def test_a_disk_that_does_not_keep_what_is_written_is_not_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = staging._write
    monkeypatch.setattr(staging, "_write", lambda f, data, at: written(f, data ^ 1, at))
    with PackedFile(path, stage_to=tmp_path / "node") as file:
        assert file.copy
        assert not file.copy.wait(60)
        assert "does not keep what is written to it" in caplog.text
        assert file[0]["x"].max() < 9


def test_a_full_disk_is_one_line_and_nothing_is_left(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = namedtuple("disk", "f_bavail f_frsize")
    monkeypatch.setattr(os, "fstatvfs", lambda fd: disk(3, 4096))
    with pytest.raises(HvdExtError, match=r"has 12 KiB free, and .* are to be copied"):
        PackedFile(path, stage_to=tmp_path / "node")
    assert list((tmp_path / "node").iterdir()) == []


def staged(path: Path, folder: Path) -> Path:
    """Where the copy of a file goes."""
    with PackedFile(path) as file:
        return private_folder(folder) / f"{file.fingerprint[:32]}.pack"


@pytest.mark.parametrize("suffix", [".pack", ".pieces"])
@pytest.mark.parametrize("kind", ["link", "second name", "pipe", "folder", "another user's"])
def test_a_file_that_others_may_write_to_is_not_staged_to(
    path: Path, tmp_path: Path, suffix: str, kind: str
) -> None:
    copy = staged(path, tmp_path / "node").with_suffix(suffix)
    copy.parent.mkdir(0o700, parents=True)
    victim = tmp_path / "victim"
    victim.write_bytes(b"as it was")
    if kind == "link":
        copy.symlink_to(victim)
    elif kind == "second name":
        copy.hardlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(copy)
    elif kind == "folder":
        copy.mkdir()
    else:
        copy.write_bytes(path.read_bytes())
        given_to_another_user(copy)
    with pytest.raises(HvdExtError, match=rf"{copy} cannot be trusted: it ") as error:
        PackedFile(path, stage_to=tmp_path / "node")
    assert "\n" not in str(error.value)
    assert victim.read_bytes() == b"as it was"


@pytest.mark.parametrize("kind", ["link", "file", "open to others", "another user's"])
def test_a_folder_that_others_may_write_to_is_not_staged_to(
    path: Path, tmp_path: Path, kind: str
) -> None:
    folder = private_folder(tmp_path / "node")
    folder.parent.mkdir()
    (tmp_path / "elsewhere").mkdir(0o700)
    if kind == "link":
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir(0o700)
        if kind == "open to others":
            folder.chmod(0o770)
        else:
            given_to_another_user(folder)
    with pytest.raises(HvdExtError, match=rf"{folder} cannot be trusted: it ") as error:
        PackedFile(path, stage_to=tmp_path / "node")
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert kind == "file" or not list(folder.iterdir())


def test_a_copy_that_was_forged_beforehand_is_not_read(path: Path, tmp_path: Path) -> None:
    """Its checksums are right, and it lies where anybody can tell that a copy will lie."""
    with PackedFile(path) as whole:
        expected = whole[3]["x"]
    copy = staged(path, tmp_path / "node")
    crafted = Crafted.of(path)
    crafted.records[:] = bytes(len(crafted.records))
    (tmp_path / "node").mkdir(0o1777)
    for folder in (tmp_path / "node", tmp_path):
        (folder / copy.name).write_bytes(crafted.encode())
        (folder / copy.with_suffix(".pieces").name).write_bytes(b"\1" * 100)
    with PackedFile(path, stage_to=tmp_path / "node") as file:
        assert copied(file) == copy
        assert copy.parent.stat().st_mode & 0o777 == 0o700
        assert np.array_equal(file[3]["x"], expected)
        assert copy.read_bytes() == path.read_bytes()


def given_to_another_user(path: Path) -> None:
    try:
        os.chown(path, 12345, -1)
    except PermissionError:
        pytest.skip("only root gives files away")


def test_closing_again_closes_no_other_file(path: Path, tmp_path: Path) -> None:
    file = PackedFile(path, stage_to=tmp_path / "node")
    copied(file)
    file.close()
    # Whoever opens files next gets the numbers that the copy had.
    others = [os.open(path, os.O_RDONLY) for _ in range(8)]
    file.close()
    for other in others:
        assert os.pread(other, 8, 0) == b"HVDPACK1"
        os.close(other)
    with pytest.raises(UsageError, match="cannot read"):
        file[0]


@given(nodes=st.integers(1, 6), pieces=st.integers(0, 20), seed=st.integers(0, 99))
def test_what_any_node_lacks_is_read_once_by_one_that_lacks_it(
    nodes: int, pieces: int, seed: int
) -> None:
    lacks = np.random.default_rng(seed).random((nodes, pieces)) < 0.5
    rounds = reading_rounds(lacks)
    assert rounds.shape[1] == nodes
    read = sorted(rounds[rounds != NO_PIECE])
    assert read == list(np.flatnonzero(lacks.any(axis=0)))
    assert all(lacks[node, piece] for row in rounds for node, piece in enumerate(row) if piece >= 0)
    # A job that begins is done in as few rounds as there can be.
    assert len(reading_rounds(np.ones((nodes, pieces), bool))) == -(-pieces // nodes)
