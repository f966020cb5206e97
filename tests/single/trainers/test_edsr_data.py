from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from edsr.data import Patches, stack, synthetic_image
from edsr.images import find_images, load_rgb, open_image, resize_bicubic, shrink
from edsr.pairs import Pair, Pairs, folder_images, packed_images
from hvd_ext.data import Order, PackedFile, share
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.sources import ImageFolder
from hvd_ext.errors import UsageError


def _images(count: int = 5, length: int = 40) -> list[np.ndarray]:
    return [synthetic_image(0, i, length) for i in range(count)]


def sample(patches: Patches, order: Order, position: int) -> Pair:
    return patches.cut(patches[order.sample(position)], order.rng(position))


def batch(images: list[np.ndarray], order: Order, positions: range) -> Tensor:
    patches = Patches([shrink(image, 2) for image in images], 2, patch=8)
    return stack([sample(patches, order, p) for p in positions])[0]


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_a_pair_shows_the_same_place(scale: int) -> None:
    """Shrinking the high patch gives the low one, but at the edges, where it sees less."""
    patches = Patches([shrink(image, scale) for image in _images(length=64)], scale, patch=12)
    order = Order(5, 1)
    for position in range(32):
        low, high = sample(patches, order, position)
        assert low.shape == (12, 12, 3)
        assert high.shape == (12 * scale, 12 * scale, 3)
        inner = slice(3, -3)
        shrunk = resize_bicubic(np.ascontiguousarray(high), 12, 12)
        difference = shrunk[inner, inner].astype(int) - low[inner, inner]
        # Pillow rounds between its two passes, which a transposed patch takes the other way.
        assert np.abs(difference).max() <= 4


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_global_batch_does_not_depend_on_the_number_of_ranks(size: int) -> None:
    images = _images()
    whole = batch(images, Order(5, 3), range(24, 36))
    local = 12 // size
    for rank in range(size):
        mine = batch(images, Order(5, 3), share(24, local, rank))
        assert mine.equal(whole[rank * local : (rank + 1) * local])


def test_seed_and_epoch_change_the_samples() -> None:
    images = _images()
    first = batch(images, Order(5, 3), range(5))
    other_seed = batch(images, Order(5, 4), range(5))
    other_epoch = batch(images, Order(5, 3), range(5, 10))
    assert not first.equal(other_seed)
    assert not first.equal(other_epoch)


def test_an_epoch_shows_each_image_once() -> None:
    flat = [np.full((16, 16, 3), 10 * i, np.uint8) for i in range(7)]
    patches, order = Patches([shrink(image, 2) for image in flat], 2, patch=4), Order(7, 0)
    for epoch in range(3):
        positions = range(epoch * 7, epoch * 7 + 7)
        seen = sorted(int(sample(patches, order, p)[0][0, 0, 0]) for p in positions)
        assert seen == [0, 10, 20, 30, 40, 50, 60]


def test_all_eight_orientations_occur() -> None:
    ramp = np.zeros((8, 8, 3), np.uint8)
    ramp[:, :, 0] = np.arange(8) * 10
    ramp[:, :, 1] = np.arange(8)[:, None] * 10
    patches, order = Patches([shrink(ramp, 2)], 2, patch=4), Order(1, 0)
    seen = {sample(patches, order, i)[1].tobytes() for i in range(200)}
    assert len(seen) == 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, length in (("b.png", 40), ("a.png", 48)):
        Image.fromarray(synthetic_image(0, length, length)).save(tmp_path / name)
    (tmp_path / "README.txt").write_text("not an image")
    return tmp_path


def _nothing(count: int, note: str = "", total: int | None = None) -> None:
    pass


def test_a_folder_is_read_by_name(folder: Path) -> None:
    images = folder_images(folder)
    assert [images.open(i).shape for i in range(images.count)] == [(48, 48, 3), (40, 40, 3)]
    assert [images.size(i) for i in range(images.count)] == [(48, 48), (40, 40)]


@pytest.mark.parametrize("decoded", [False, True])
def test_a_packed_folder_holds_the_same_images(folder: Path, tmp_path: Path, decoded: bool) -> None:
    path = tmp_path / "a.pack"
    pack(ImageFolder(folder, decoded=decoded), path, _nothing)
    expected = folder_images(folder)
    with PackedFile(path) as file:
        found = packed_images(file)
        assert found.count == expected.count == 2
        assert all(np.array_equal(found.open(i), expected.open(i)) for i in range(2))
        assert [found.size(i) for i in range(2)] == [(48, 48), (40, 40)]
        with pytest.raises(UsageError, match=r"b\.png is 40x40, smaller than 41x41: leave it out"):
            Pairs(found, 1, 41)[1]


def refused(pairs: Pairs, number: int, message: str) -> None:
    for read in (pairs.__getitem__, pairs.check):
        with pytest.raises(UsageError, match=message) as error:
            read(number)
        assert "\n" not in str(error.value)


def test_an_image_smaller_than_the_patch_is_refused(folder: Path) -> None:
    refused(Pairs(folder_images(folder), 1, 41), 1, r"b\.png is 40x40, smaller than 41x41")
    # A multiple of the scale is left of it.
    refused(Pairs(folder_images(folder), 3, 40), 1, r"b\.png is 40x40, smaller than 40x40")


def test_given_small_images_are_used_rounded_up_or_down(tmp_path: Path) -> None:
    for name in ("high", "low"):
        (tmp_path / name).mkdir()
    high = synthetic_image(0, 1, 50)[:49, :47]
    Image.fromarray(high).save(tmp_path / "high" / "a.png")
    pairs = Pairs(folder_images(tmp_path / "high"), 2, 20, tmp_path / "low")
    refused(pairs, 0, r"low holds no small image of a\.png, such as ax2\.png")
    given = synthetic_image(0, 2, 25)
    # 47 / 2 and 49 / 2 rounded up as MATLAB's imresize does, and down.
    for height, width in ((25, 24), (24, 23), (25, 23), (24, 24)):
        Image.fromarray(given[:height, :width]).save(tmp_path / "low" / "ax2.png")
        pairs.check(0)
        low, large = pairs[0]
        assert np.array_equal(low, given[:24, :23])
        assert np.array_equal(large, high[:48, :46])
    for height, width in ((26, 24), (24, 22), (23, 23), (48, 46)):
        small = Image.fromarray(np.zeros((height, width, 3), np.uint8))
        small.save(tmp_path / "low" / "ax2.png")
        refused(pairs, 0, f"a.png is 47x49, its small image {width}x{height}: that is not 1/2 of")


@pytest.mark.parametrize("keep", [0, 20, 0.5, 0.95])
def test_an_image_that_is_cut_off_is_refused(folder: Path, keep: float) -> None:
    path = folder / "a.png"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if keep < 1 else keep])
    with pytest.raises(UsageError, match=r"a\.png is not a readable image") as caught:
        load_rgb(path)
    assert "\n" not in str(caught.value)


def test_folders_without_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no image"):
        find_images(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        find_images(tmp_path / "missing")


def test_sixteen_bit_images_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(UsageError, match="bits a channel, not 8"):
        open_image(tmp_path / "deep.png")


@pytest.mark.parametrize(("shape", "scale"), [((9, 10), 2), ((11, 9), 3), ((8, 11), 4)])
def test_shrinking_cuts_to_a_multiple(shape: tuple[int, int], scale: int) -> None:
    low, high = shrink(np.zeros((*shape, 3), np.uint8), scale)
    assert low.shape[:2] == (shape[0] // scale, shape[1] // scale)
    assert high.shape[:2] == (low.shape[0] * scale, low.shape[1] * scale)
