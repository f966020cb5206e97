"""Images of classes: DIR/class/image, as ImageNet is laid out, or a packed file of them."""

from __future__ import annotations

import argparse
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hvd_ext.data import PackedFile, fingerprint, map_ahead
from hvd_ext.data.packed.folders import SUFFIXES, find_classes
from hvd_ext.data.packed.images import decode_image, image_size
from hvd_ext.errors import UsageError
from training import ranks
from training.samples.packs import is_pack, open_pack

Opened = tuple[Image.Image, int]
Sample = tuple[NDArray[np.uint8], int]

# Mean and standard deviation of ImageNet's colors, as shares of 255.
_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
_STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class Images(ABC):
    """Images and their classes: `len(images)`, and one by its number.

    Attributes:
        classes: names of the classes; a label is a place in them.
        fingerprint: the same for the same images.
    """

    classes: tuple[str, ...]
    fingerprint: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Opened:
        """Image `index`, decoded, and its label.

        Raises:
            UsageError: it cannot be read.
        """

    @abstractmethod
    def check(self, index: int) -> None:
        """See, by its header, that image `index` can be read.

        Raises:
            UsageError: it cannot.
        """


@dataclass(frozen=True)
class ClassFolder(Images):
    """A folder of class folders.

    Attributes:
        root: the folder.
        classes: names of the classes; a label is a place in them.
        samples: (class/image, label) of each, in the order of the names.
        fingerprint: the same for the same names and labels.
        left_out: what else the folder has, as text of one line; or "".
    """

    root: Path
    classes: tuple[str, ...]
    samples: tuple[tuple[str, int], ...]
    fingerprint: str
    left_out: str = ""

    @classmethod
    def read(cls, root: Path, classes: tuple[str, ...] = ()) -> ClassFolder:
        """List a folder.

        Args:
            root: the folder of class folders.
            classes: the classes that it may have; empty: those that it has.

        Raises:
            UsageError: the folder does not exist, holds no image, or has an unknown or empty class.
        """
        if not root.is_dir():
            raise UsageError(f"{root} does not exist: name a folder of class folders")
        found = find_classes(root)
        if not found.names:
            raise UsageError(f"{root} holds no class/image ({' '.join(SUFFIXES)})")
        classes = classes or tuple(found.classes)
        require_known(root, found.classes, classes)
        labels = [classes.index(name) for name in found.classes]
        samples = tuple(
            (name, labels[label]) for name, label in zip(found.names, found.labels, strict=True)
        )
        return cls(root, classes, samples, fingerprint(samples), found.describe_left_out())

    def __len__(self) -> int:
        return len(self.samples)

    def check(self, index: int) -> None:
        image_size(self.root / self.samples[index][0])

    def __getitem__(self, index: int) -> Opened:
        name, label = self.samples[index]
        return decode_image(self.root / name).convert("RGB"), label


class ClassPack(Images):
    """A packed file of class folders."""

    def __init__(self, file: PackedFile, classes: tuple[str, ...] = ()) -> None:
        """Use an open file.

        Args:
            file: made of a folder of class folders.
            classes: the classes that it may have; empty: those that it has.

        Raises:
            UsageError: it holds something else, or has an unknown class.
        """
        if [field.name for field in file.header.fields] != ["label", "image"]:
            raise UsageError(f"{file.path} is not of DIR/class/image: pack such a folder")
        self._file, found = file, file.header.classes
        self.classes = classes or found
        require_known(file.path, found, self.classes)
        self._labels = [self.classes.index(name) for name in found]
        self.fingerprint = file.fingerprint

    def __len__(self) -> int:
        return len(self._file)

    def check(self, index: int) -> None:
        """Check nothing, because images were decoded when they were packed."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each record."""
        return self._file.lengths

    def record(self, index: int) -> NDArray[np.uint8]:
        """Return an image as it is in the file."""
        return self._file.record(index)

    def __getitem__(self, index: int) -> Opened:
        return self.decode(index, self.record(index))

    def decode(self, index: int, record: NDArray[np.uint8]) -> Opened:
        """The image that a record holds, and its label."""
        sample = self._file.decode(index, record)
        image, label = sample["image"], self._labels[int(sample["label"])]
        if isinstance(image, bytes):
            name = f"{self._file.path}: {self._file.name(index)}"
            return decode_image(image, name).convert("RGB"), label
        return Image.fromarray(image), label


def require_known(path: Path, found: Iterable[str], classes: Sequence[str]) -> None:
    """Raise UsageError if a class was found that is not among those of the training set."""
    if unknown := sorted(set(found) - set(classes)):
        raise UsageError(f"{path} has class {unknown[0]!r}, which is not in the training set")


def read_images(
    path: Path,
    hvd: ModuleType,
    program: str,
    classes: tuple[str, ...] = (),
    args: argparse.Namespace | None = None,
) -> Images:
    """The images of a folder or of a packed file, which rank 0 lists for all. A collective.

    Args:
        path: DIR/class/image, or FILE.pack of such a folder.
        hvd: the exchange.
        program: the name that the error begins with.
        classes: the classes that it may have; empty: those that it has.
        args: see `open_pack`.

    Raises:
        SystemExit: it cannot be used; rank 0 has said why.
    """
    if is_pack(path):
        return ClassPack(open_pack(path, hvd, program, args), classes)
    folder = ranks.read_on_rank_0(hvd, program, lambda: ClassFolder.read(path, classes))
    if folder.left_out and hvd.rank() == 0:
        print(f"{program}: left out in {path}: {folder.left_out}", file=sys.stderr)
    return folder


def centred(opened: Opened, side: int) -> Sample:
    """An image, its short edge resized to side * 256 / 224 and its centre cut out."""
    image, label = opened
    length = side / 224 * 256 / min(image.width, image.height)
    half = side / length / 2
    x, y = image.width / 2, image.height / 2
    box = (x - half, y - half, x + half, y + half)
    return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=box)), label


def train_sample(opened: Opened, side: int, rng: np.random.Generator) -> Sample:
    """An image randomly cut, resized to (side, side, 3) and flipped, and its label."""
    image, label = opened
    box = _random_box(rng, image.width, image.height)
    pixels = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=box))
    return (pixels[:, ::-1] if rng.random() < 0.5 else pixels), label


def load_batches(
    batches: Iterable[Iterable[int]],
    load: Callable[[int], Sample | None],
    workers: int,
    ahead: int = 2,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Load batches of samples on threads, some batches ahead.

    Args:
        batches: numbers of samples.
        load: gives a sample, or None for one that is left out.
        workers: number of threads.
        ahead: batches.

    Yields:
        `stack` of each batch that has a sample.
    """
    for loaded in map_ahead(load, batches, workers=workers, ahead=ahead):
        if batch := [sample for sample in loaded if sample is not None]:
            yield stack(batch)


def stack(samples: list[Sample]) -> tuple[Tensor, Tensor]:
    """Images (N, 3, H, W), as bytes, and labels (N,)."""
    pixels, labels = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2), torch.tensor(labels)


def normalised(images: Tensor) -> Tensor:
    """Images of bytes as floats, with ImageNet's mean and deviation taken off."""
    mean, std = _MEAN.to(images.device), _STD.to(images.device)
    return (images.contiguous().float() / 255 - mean) / std


def _random_box(
    rng: np.random.Generator, width: int, height: int
) -> tuple[float, float, float, float]:
    """A box of 8 to 100 % of the area, 3:4 to 4:3 (Szegedy et al., 2015); else the centre."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return x, y, x + w, y + h
    side = min(width, height)
    x, y = (width - side) // 2, (height - side) // 2
    return x, y, x + side, y + side
