"""Images are used as they are or refused, and folders are listed as torchvision lists them."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edsr.images import find_images, load_rgb
from hvd_ext.data.__main__ import main
from hvd_ext.data.packed.folders import find_classes
from hvd_ext.data.packed.images import decode_image, image_size
from hvd_ext.data.packed.sources import ImageFolder
from hvd_ext.errors import UsageError
from resnet.folder import ClassFolder

DARK = 200  # of 65535: 0 of 255


def png(colour: int, channels: int) -> bytes:
    """A dark PNG of 16 bits a channel, which Pillow cannot write."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    row = b"\0" + struct.pack(">H", DARK) * channels * 8
    header = struct.pack(">IIBBBBB", 8, 8, 16, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * 8)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def tiff() -> bytes:
    """An uncompressed RGB TIFF of 16 bits a channel."""
    pixels = struct.pack("<H", DARK) * 3 * 64
    end = 8 + len(pixels)
    tags = ((256, 8), (257, 8), (259, 1), (262, 2), (273, 8), (277, 3), (278, 8))
    entries = [(tag, struct.pack("<HHII", tag, 4, 1, value)) for tag, value in tags]
    bits = end + 2 + 12 * (len(tags) + 2) + 4
    entries += [(258, struct.pack("<HHII", 258, 3, 3, bits))]
    entries += [(279, struct.pack("<HHII", 279, 4, 1, len(pixels)))]
    directory = b"".join(entry for _, entry in sorted(entries))
    directory = struct.pack("<H", len(entries)) + directory + struct.pack("<I", 0)
    return (
        struct.pack("<2sHI", b"II", 42, end) + pixels + directory + struct.pack("<3H", 16, 16, 16)
    )


PIXELS = struct.pack(">H", DARK) * 3 * 64
DEEP = {
    "rgb.png": (png(2, 3), 16),
    "rgba.png": (png(6, 4), 16),
    "gray.png": (png(0, 1), 16),
    "gray_alpha.png": (png(4, 2), 16),
    "rgb.tif": (tiff(), 16),
    "16.ppm": (b"P6\n# 8 8 255\n8 8\n65535\n" + PIXELS, 16),
    "12.ppm": (b"P6 8 8 4095\n" + PIXELS, 12),
    "text.ppm": (b"P3 8 8 4095\n" + b"200 " * 192, 12),
    "16.pgm": (b"P5 8 8 65535\n" + PIXELS[:128], 16),
}


@pytest.mark.parametrize("name", DEEP)
def test_more_than_8_bits_a_channel_are_refused_and_not_cut(tmp_path: Path, name: str) -> None:
    content, bits = DEEP[name]
    path = tmp_path / name
    path.write_bytes(content)
    for read in (decode_image, image_size):
        with pytest.raises(UsageError, match=f"{name} has {bits} bits a channel, not 8: convert"):
            read(path)


@pytest.mark.parametrize(
    "read",
    [
        lambda folder: ImageFolder(folder)[0],
        lambda folder: ImageFolder(folder, decoded=True)[0],
        lambda folder: ClassFolder.read(folder)[0],
        lambda folder: load_rgb(folder / "class" / "a.png"),
    ],
    ids=["pack", "pack decoded", "resnet", "edsr"],
)
def test_whoever_reads_images_refuses_16_bits(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "a.png").write_bytes(DEEP["rgb.png"][0])
    with pytest.raises(UsageError, match=r"a\.png has 16 bits a channel"):
        read(tmp_path)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_8_bits_and_fewer_are_read(tmp_path: Path, mode: str) -> None:
    Image.new("RGB", (6, 4), (255, 255, 255)).convert(mode).save(tmp_path / "a.png")
    assert np.asarray(decode_image(tmp_path / "a.png").convert("RGB")).min() == 255
    assert image_size(tmp_path / "a.png") == (4, 6)


@pytest.mark.parametrize("ending", ["png", "jpg", "tif", "webp"])
def test_a_size_is_that_of_the_upright_image_and_needs_only_the_header(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"a.{ending}"
    noise = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    for kept, size in ((None, (40, 60)), (exif, (60, 40))):
        Image.fromarray(noise).save(path, **({"exif": kept} if kept else {}))
        assert image_size(path) == size == np.shape(decode_image(path))[:2]
        if ending in ("png", "jpg"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            assert image_size(path) == size
            with pytest.raises(UsageError, match="is not a readable image"):
                decode_image(path)


def test_a_ppm_with_fewer_values_is_scaled(tmp_path: Path) -> None:
    (tmp_path / "a.ppm").write_bytes(b"P6 8 8 127\n" + b"\x7f" * 192)
    assert np.asarray(decode_image(tmp_path / "a.ppm")).min() == 255


def test_pages_and_frames_are_not_left_out(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (8, 8), (colour, 0, 0)) for colour in (0, 255))
    for name in ("a.tif", "a.gif", "a.png"):
        first.save(tmp_path / name, save_all=True, append_images=[second])
        with pytest.raises(UsageError, match="has 2 pages or frames: save each"):
            decode_image(tmp_path / name)
    # Phones write previews behind the picture.
    first.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[second])
    assert np.asarray(decode_image(tmp_path / "a.jpg")).max() == 0


def test_a_picture_of_another_format_is_refused_whatever_its_name(tmp_path: Path) -> None:
    # It may have 16 bits, and its header is not looked into.
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png", format="JPEG2000")
    with pytest.raises(UsageError, match="it is none of PNG, JPEG"):
        decode_image(tmp_path / "a.png")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"a\.png is not a regular file"):
        decode_image(tmp_path / "a.png")


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Two classes, one with a folder in it, and what other programs leave in such folders."""
    for name in ("cat/0.png", "cat/more/1.PNG", "dog/2.pgm"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(path)
    for name in (".git/a.png", "cat/._0.png", "cat/notes.txt", "dog/a.gif", "readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("no image")
    os.mkfifo(tmp_path / "dog" / "pipe.png")
    (tmp_path / "dog" / "round").symlink_to(tmp_path / "dog")
    (tmp_path / "dog" / "gone.png").symlink_to(tmp_path / "nowhere")
    return tmp_path


LEFT_OUT = (
    "files outside of the class folders: 1 (such as 'readme.txt'); files with other suffixes: 2 "
    "(such as 'cat/notes.txt'); hidden entries: 2 (such as '.git'); names of images that are no "
    "files: 2 (such as 'dog/gone.png')"
)


def test_classes_are_those_of_torchvision_and_the_rest_is_named(classes: Path) -> None:
    found = find_classes(classes)
    assert found.classes == ["cat", "dog"]
    assert found.names == ["cat/0.png", "cat/more/1.PNG", "dog/2.pgm"]
    assert found.labels == [0, 0, 1]
    assert found.describe_left_out() == LEFT_OUT
    folder, packed = ClassFolder.read(classes), ImageFolder(classes)
    assert folder.samples == tuple(zip(found.names, found.labels, strict=True))
    assert (packed.names, packed.classes) == (found.names, ("cat", "dog"))
    assert [int(packed[i]["label"]) for i in range(3)] == found.labels
    # A class has the number that the training set gives it.
    assert [label for _, label in ClassFolder.read(classes, ("ant", "cat", "dog")).samples] == [
        *(1, 1, 2),
    ]


@pytest.mark.parametrize("read", [ClassFolder.read, ImageFolder])
def test_an_empty_class_is_refused_because_it_would_shift_the_others(
    classes: Path, read: Callable[[Path], object]
) -> None:
    (classes / "bird" / "empty").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"the class folder .*/bird holds no image"):
        read(classes)


def test_pack_and_edsr_say_what_they_leave_out(
    classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(classes), "-o", str(tmp_path / "i.pack")]) == 0
    assert capsys.readouterr().err == f"hvd_ext.data: left out: {LEFT_OUT}\n"
    assert find_images(classes / "cat", "edsr.train") == [classes / "cat" / "0.png"]
    assert capsys.readouterr().err == (
        f"edsr.train: left out in {classes}/cat: files with other suffixes: 1 (such as "
        "'notes.txt'); folders: 1 (such as 'more'); hidden entries: 1 (such as '._0.png')\n"
    )
