"""Packed files: what goes in comes out, and what is damaged is said in one line."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from edsr.images import load_rgb
from hvd_ext.data import PackedFile
from hvd_ext.data.__main__ import main
from hvd_ext.data.packed import layout
from hvd_ext.data.packed.layout import BLOCK_BYTES, Field
from hvd_ext.data.packed.pack import pack, verify
from hvd_ext.data.packed.sources import Arrays, ImageFolder, open_samples, open_source
from hvd_ext.errors import UsageError
from resnet.folder import ClassFolder, ClassPack
from testbed.ranks import ROOT, environment


def nothing(completed: int, note: str = "", total: int | None = None) -> None:
    pass


def packed(samples: object, path: Path) -> PackedFile:
    pack(samples, path, nothing)
    return PackedFile(path)


@pytest.fixture(scope="module")
def volumes() -> dict[str, np.ndarray]:
    """Records of 2.3 blocks, whose labels come after a field that ends at no multiple of 64."""
    rng = np.random.default_rng(0)
    cubes = rng.integers(-9, 9, (3, 2, 84, 84, 85), np.int16)
    assert 2 < cubes[0].nbytes / BLOCK_BYTES < 3
    return {"cubes": cubes, "labels": rng.random((3, 4), np.float32)}


@pytest.fixture(scope="module")
def volume_pack(
    volumes: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> PackedFile:
    return packed(Arrays(volumes), tmp_path_factory.mktemp("packs") / "volumes.pack")


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(1)
    for name, ending in (("cat", "png"), ("dog", "jpg")):
        (root / name).mkdir()
        for i in range(3):
            noise = rng.integers(0, 255, (20 + i, 30, 3), np.uint8)
            Image.fromarray(noise).save(root / name / f"{i}.{ending}")
    return root


def test_arrays_come_out_as_they_went_in(
    volumes: dict[str, np.ndarray], volume_pack: PackedFile
) -> None:
    for sample in (2, 0, 1):
        found = volume_pack[sample]
        for name, array in volumes.items():
            assert found[name].dtype == array.dtype
            assert np.array_equal(found[name], array[sample])
    assert volume_pack.field("labels").shape == (3, 4)
    with pytest.raises(UsageError, match=r"no array 'masks': it has cubes, labels"):
        volume_pack.field("masks")
    with pytest.raises(IndexError):
        volume_pack[3]
    assert np.array_equal(pickle.loads(pickle.dumps(volume_pack))[1]["cubes"], volumes["cubes"][1])


def test_a_block_of_a_sample_reads_the_blocks_it_lies_in(
    volumes: dict[str, np.ndarray], volume_pack: PackedFile
) -> None:
    source = volume_pack.field("cubes")
    cuts = [slice(0, 2), slice(0, 84), slice(0, 84), slice(0, 85)]
    for dim, part in ((0, slice(1, 2)), (1, slice(5, 40)), (2, slice(83, 84)), (3, slice(2, 9))):
        index = (slice(1, 3), *cuts[:dim], part, *cuts[dim + 1 :])
        assert np.array_equal(source[index], volumes["cubes"][index])
    before = volume_pack.bytes_read
    one = (slice(0, 1), slice(0, 1), slice(0, 2), slice(0, 84), slice(0, 85))
    assert np.array_equal(source[one], volumes["cubes"][one])
    assert volume_pack.bytes_read - before == BLOCK_BYTES


@given(
    st.lists(st.integers(1, 7), min_size=0, max_size=4),
    st.sampled_from(["|u1", "<i2", "<f8"]),
    st.integers(0, 5),
    st.data(),
)
def test_the_blocks_of_a_box_are_those_of_its_elements(
    shape: list[int], dtype: str, begin: int, data: st.DataObject
) -> None:
    box = tuple(tuple(sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2)))) for n in shape)
    field = Field("f", "array", dtype, tuple(shape))
    item = np.dtype(dtype).itemsize
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "BLOCK_BYTES", 16)
        found = layout.touched(field, begin * 16, box)
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    elements = numbers[tuple(slice(*ends) for ends in box)].ravel() * item + begin * 16
    expected = {int(byte) // 16 for first in elements for byte in (first, first + item - 1)}
    assert set(np.flatnonzero(found)) == expected


def test_a_camera_that_was_turned_is_seen_upright_by_all_who_decode(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    noise = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)
    path = tmp_path / "images" / "cat" / "0.png"
    Image.fromarray(noise).save(path, exif=exif)
    upright = np.rot90(noise, -1)
    decoded = packed(ImageFolder(tmp_path / "images", decoded=True), tmp_path / "d.pack")
    encoded = packed(ImageFolder(tmp_path / "images"), tmp_path / "e.pack")
    assert np.array_equal(decoded[0]["image"], upright)
    assert np.array_equal(load_rgb(path, encoded[0]["image"]), upright)
    for images in (ClassFolder.read(tmp_path / "images"), ClassPack(encoded), ClassPack(decoded)):
        assert np.array_equal(images[0][0], upright)


@pytest.mark.parametrize("decoded", [False, True])
def test_images_come_out_as_they_went_in(classes: Path, tmp_path: Path, decoded: bool) -> None:
    folder = ImageFolder(classes, decoded=decoded)
    with packed(folder, tmp_path / "i.pack") as file:
        assert file.header.classes == ("cat", "dog")
        assert [int(file[i]["label"]) for i in range(6)] == [0, 0, 0, 1, 1, 1]
        assert file.name(4) == "dog/1.jpg"
        for i, path in enumerate(folder.paths):
            if decoded:
                with Image.open(path) as image:
                    assert np.array_equal(file[i]["image"], np.asarray(image))
            else:
                assert file[i]["image"] == path.read_bytes()


def test_each_record_and_table_is_read_once(classes: Path, tmp_path: Path) -> None:
    with packed(ImageFolder(classes), tmp_path / "i.pack") as file:
        opened = file.bytes_read
        assert opened == file.tables.table_bytes
        for i in range(len(file)):
            file[i]
        assert file.bytes_read - opened == file.tables.places[:, 1].sum()
        # What another rank has read is not read again.
        with PackedFile(file.path, file.tables) as other:
            assert other[2] == file[2]
            assert other.bytes_read == file.tables.places[2, 1]


@pytest.fixture(scope="module")
def image_pack(classes: Path, tmp_path_factory: pytest.TempPathFactory) -> PackedFile:
    return packed(ImageFolder(classes), tmp_path_factory.mktemp("packs") / "images.pack")


def sections(file: PackedFile) -> dict[str, tuple[int, int]]:
    """Begin and end of all that is not padding."""
    found = {"header": (0, 60), "footer": (file.tables.footer.file_bytes - 64, 0)}
    found |= file.tables.footer.sections
    for i, (offset, length) in enumerate(file.tables.places.tolist()):
        found[f"record {i}"] = (offset, offset + length)
    found["footer"] = (found["footer"][0], found["footer"][0] + 64)
    return found


def read_all(path: Path) -> None:
    with PackedFile(path) as file:
        verify(file, nothing)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(data=st.data())
def test_a_changed_byte_is_found_wherever_it_is(
    image_pack: PackedFile, tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "i.pack"
    whole = image_pack.path.read_bytes()
    for begin, end in sections(image_pack).values():
        place = data.draw(st.integers(begin, end - 1))
        damaged = bytearray(whole)
        damaged[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"is damaged|cut off or damaged|is not a packed") as e:
            read_all(path)
        assert "\n" not in str(e.value)
        assert str(path) in str(e.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(data=st.data())
def test_a_file_that_is_cut_is_found_when_it_is_opened(
    image_pack: PackedFile, tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "i.pack"
    whole = image_pack.path.read_bytes()
    for begin, end in sections(image_pack).values():
        path.write_bytes(whole[: data.draw(st.integers(begin, end - 1))])
        with pytest.raises(UsageError, match="cut off or damaged"):
            PackedFile(path)


def test_a_file_that_is_cut_while_it_is_read_is_a_line(classes: Path, tmp_path: Path) -> None:
    path = tmp_path / "i.pack"
    with packed(ImageFolder(classes), path) as file:
        with path.open("r+b") as stream:
            stream.truncate(int(file.tables.places[3, 0]) + 5)
        assert file[2]
        with pytest.raises(UsageError, match="was cut off while it was read, at byte"):
            file[3]


def test_what_cannot_be_packed_leaves_nothing(classes: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "a.png").write_bytes((classes / "cat" / "0.png").read_bytes()[:200])
    out = tmp_path / "out.pack"
    with pytest.raises(UsageError, match=r"a\.png is not a readable image"):
        pack(ImageFolder(bad), out, nothing)
    (bad / "a.png").unlink()
    with pytest.raises(UsageError, match="holds no image"):
        ImageFolder(bad)
    with pytest.raises(UsageError, match="must have a row of every sample"):
        Arrays({"a": np.zeros((3, 2)), "b": np.zeros((2, 2))})
    with pytest.raises(UsageError, match="only real numbers"):
        Arrays({"a": np.zeros((3, 2), complex)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad"]


def test_the_commands_round_a_folder(
    classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "i.pack")
    assert main(["pack", str(classes), "-o", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["samples"], told["classes"]) == (6, ["cat", "dog"])
    assert main(["verify", out]) == 0
    assert "whole: " in capsys.readouterr().out
    assert main(["unpack", out, str(tmp_path / "again")]) == 0
    for path in ImageFolder(classes).paths:
        again = tmp_path / "again" / path.relative_to(classes)
        assert again.read_bytes() == path.read_bytes()


def test_the_commands_round_arrays(
    volumes: dict[str, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for name, array in volumes.items():
        np.save(tmp_path / "in" / f"{name}.npy", array[:, :1])
    out = str(tmp_path / "v.pack")
    assert main(["pack", str(tmp_path / "in"), "-o", out]) == 0
    assert "cubes: array of <i2 (1, 84, 84, 85)" in capsys.readouterr().out
    assert main(["unpack", out, str(tmp_path / "again")]) == 0
    for name, array in volumes.items():
        assert np.array_equal(np.load(tmp_path / "again" / f"{name}.npy"), array[:, :1])


def test_a_damaged_file_ends_the_command_in_one_line(classes: Path, tmp_path: Path) -> None:
    path = tmp_path / "i.pack"
    file = packed(ImageFolder(classes), path)
    with path.open("r+b") as stream:
        stream.seek(int(file.tables.places[4, 0]) + 70)
        stream.write(b"????")
    command = [sys.executable, "-m", "hvd_ext.data", "verify", str(path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"hvd_ext.data: error: {path}: sample 4 (dog/1.jpg) is damaged: ")


def test_hdf5_and_zarr_are_sources(volumes: dict[str, np.ndarray], tmp_path: Path) -> None:
    import h5py

    zarr = pytest.importorskip("zarr", reason="needs Python >= 3.11")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["/group/cubes"] = volumes["cubes"]
    zarr.save_array(str(tmp_path / "labels.zarr"), volumes["labels"])
    named = [f"cubes={tmp_path}/a.h5:/group/cubes", f"labels={tmp_path}/labels.zarr"]
    with packed(open_samples(named), tmp_path / "v.pack") as file:
        for name, array in volumes.items():
            assert np.array_equal(file[2][name], array[2])
    for bad in ("a.h5:/group", "a.h5:/missing", "missing.zarr"):
        with pytest.raises(UsageError, match="is not an array that can be read"):
            open_source(f"{tmp_path}/{bad}")


def test_a_source_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.npy is not an array that can be read"):
        open_source(str(tmp_path / "missing.npy"))
    with pytest.raises(UsageError, match="is not a folder: give one, or NAME=FILE"):
        open_samples([str(tmp_path / "missing")])
