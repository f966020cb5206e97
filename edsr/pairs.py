"""Images in two resolutions: the smaller ones are made, or given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edsr.bicubic import Pixels
from edsr.images import MATLAB, find_images, load_rgb, shrink
from hvd_ext.data import PackedFile
from hvd_ext.data.packed.folders import SUFFIXES
from hvd_ext.data.packed.images import image_size
from hvd_ext.errors import UsageError

Pair = tuple[Pixels, Pixels]
Size = tuple[int, int]


@dataclass(frozen=True)
class Images:
    """Some images, decoded when they are opened.

    Attributes:
        count: how many.
        open: gives one by its number, (H, W, 3).
        size: gives height and width of one, by its header where it has one.
        name: gives what errors call one.
    """

    count: int
    open: Callable[[int], Pixels]
    size: Callable[[int], Size]
    name: Callable[[int], Path]


def folder_images(folder: Path, program: str = "") -> Images:
    """The images of a folder.

    Args:
        folder: see `find_images`.
        program: see `find_images`.

    Raises:
        UsageError: the folder holds no image; and when one is opened, that it is not readable.
    """
    paths = find_images(folder, program)
    return Images(
        len(paths),
        lambda number: load_rgb(paths[number]),
        lambda number: image_size(paths[number]),
        lambda number: paths[number],
    )


def packed_images(file: PackedFile) -> Images:
    """The images of a packed file.

    Args:
        file: file of images.

    Raises:
        UsageError: it holds no images; and when one is opened, that it is damaged.
    """
    if file.header.fields[-1].name != "image":
        raise UsageError(f"{file.path} holds no images: pack a folder of images")

    def name(number: int) -> Path:
        return file.path / file.name(number)

    def opened(number: int) -> Pixels:
        image = file[number]["image"]
        return load_rgb(name(number), image) if isinstance(image, bytes) else image

    def size(number: int) -> Size:
        image = file[number]["image"]
        if isinstance(image, bytes):
            return image_size(image, name(number))
        height, width = np.shape(image)[:2]
        return height, width

    return Images(len(file), opened, size, name)


@dataclass(frozen=True)
class Pairs:
    """Images and their 1/scale: `pairs[i]` is (low, high).

    Attributes:
        images: images in high resolution.
        scale: factor between the resolutions.
        least: length that an image has at least, of its part that is a multiple of the scale.
        low: folder of the small images, named as DIV2K's (0801x2.png) or alike; None: they are
            made of the large ones.
        kernel: whose bicubic makes them.
    """

    images: Images
    scale: int
    least: int
    low: Path | None = None
    kernel: str = MATLAB

    def __len__(self) -> int:
        return self.images.count

    def __getitem__(self, number: int) -> Pair:
        """(H, W, 3) and (scale H, scale W, 3).

        Raises:
            UsageError: an image is not readable or too small, or its small one does not fit.
        """
        high = self.images.open(number)
        if self.low is None:
            self._require_fit(number, high.shape[:2])
            return shrink(high, self.scale, self.kernel)
        low = load_rgb(find_low(self.low, self.images.name(number), self.scale))
        self._require_fit(number, high.shape[:2], low.shape[:2])
        height, width = (length // self.scale for length in high.shape[:2])
        return low[:height, :width], high[: height * self.scale, : width * self.scale]

    def check(self, number: int) -> None:
        """Check a pair's headers.

        Raises:
            UsageError: as `pairs[number]`, if the headers show it.
        """
        high = self.images.size(number)
        if self.low is None:
            self._require_fit(number, high)
            return
        low = image_size(find_low(self.low, self.images.name(number), self.scale))
        self._require_fit(number, high, low)

    def _require_fit(self, number: int, high: Size, low: Size | None = None) -> None:
        """Raise UsageError for a size that cannot be used.

        A small image may have one pixel more, as MATLAB's imresize rounds up; that pixel shows
        what lies beyond the part that is used.
        """
        name, (height, width) = self.images.name(number), high
        if min(height, width) // self.scale * self.scale < self.least:
            raise UsageError(
                f"{name} is {width}x{height}, smaller than {self.least}x{self.least}: leave it out"
            )
        fits = all(
            length in (large // self.scale, -(-large // self.scale))
            for length, large in zip(low or (), high, strict=False)
        )
        if low and not fits:
            raise UsageError(
                f"{name} is {width}x{height}, its small image {low[1]}x{low[0]}: that is not "
                f"1/{self.scale} of it"
            )


def find_low(folder: Path, high: Path, scale: int) -> Path:
    """The small image of `high` in a folder, named as DIV2K's are (0801x2.png) or alike.

    Raises:
        UsageError: there is none.
    """
    names = [
        f"{stem}{suffix}" for stem in (f"{high.stem}x{scale}", high.stem) for suffix in SUFFIXES
    ]
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise UsageError(f"{folder} holds no small image of {high.name}, such as {names[0]}")
    return found
