"""A folder of classes, each a folder of images, as ImageNet is laid out.

How image i is cut in epoch e depends on the seed, e and i alone, so a run can stop
and go on between any two batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hvd_ext.errors import UsageError

Sample = tuple[NDArray[np.uint8], int]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
BATCHES_AHEAD = 2

# Mean and standard deviation of ImageNet's colours, as shares of 255.
_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
_STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


@dataclass(frozen=True)
class ClassFolder:
    """Images and their classes.

    Attributes:
        classes: names of the classes; a label is a place in them.
        samples: (path, label) of each image, in the order of the names.
    """

    classes: tuple[str, ...]
    samples: tuple[tuple[Path, int], ...]

    @classmethod
    def read(cls, root: Path, classes: tuple[str, ...] = ()) -> ClassFolder:
        """List a folder.

        Args:
            root: the folder of class folders.
            classes: the classes that it may have; empty: those that it has.

        Raises:
            UsageError: the folder does not exist, holds no image, or has an unknown class.
        """
        if not root.is_dir():
            raise UsageError(f"{root} does not exist: name a folder of class folders")
        found = tuple(sorted(p.name for p in root.iterdir() if p.is_dir()))
        classes = classes or found
        unknown = sorted(set(found) - set(classes))
        if unknown:
            raise UsageError(f"{root} has class {unknown[0]!r}, which is not in the training set")
        samples = tuple(
            (path, classes.index(name))
            for name in found
            for path in sorted((root / name).iterdir())
            if path.suffix.lower() in SUFFIXES
        )
        if not samples:
            raise UsageError(f"{root} holds no class/image ({' '.join(SUFFIXES)})")
        return cls(classes, samples)

    def train_sample(self, index: int, side: int, seed: int, epoch: int) -> Sample:
        """Image `index`, randomly cut, resized to (side, side, 3) and flipped, and its label."""
        path, label = self.samples[index]
        # NumPy pads a seed with zeros, so index + 1 keeps apart from the order's seed.
        rng = np.random.default_rng((seed, epoch, index + 1))
        image = _open(path)
        box = _random_box(rng, image.width, image.height)
        pixels = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=box))
        return (pixels[:, ::-1] if rng.random() < 0.5 else pixels), label

    def validation_sample(self, index: int, side: int) -> Sample:
        """Image `index`, its short edge resized to side * 256 / 224 and its centre cut out."""
        path, label = self.samples[index]
        image = _open(path)
        length = side / 224 * 256 / min(image.width, image.height)
        half = side / length / 2
        x, y = image.width / 2, image.height / 2
        box = (x - half, y - half, x + half, y + half)
        return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, box=box)), label


def epoch_order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch, 0)).permutation(count)


def load_batches(
    batches: Iterable[Iterable[int]], load: Callable[[int], Sample], workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Load batches of samples on threads, a few batches ahead.

    Yields:
        images (N, 3, H, W), normalised, and labels (N,).
    """
    with ThreadPoolExecutor(workers) as pool:
        ahead: deque[list[Future[Sample]]] = deque()
        for batch in batches:
            ahead.append([pool.submit(load, int(index)) for index in batch])
            if len(ahead) > BATCHES_AHEAD:
                yield _stack(ahead.popleft())
        while ahead:
            yield _stack(ahead.popleft())


def _stack(futures: list[Future[Sample]]) -> tuple[Tensor, Tensor]:
    pixels, labels = zip(*(future.result() for future in futures), strict=True)
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    return (images - _MEAN) / _STD, torch.tensor(labels)


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            if image.mode[0] in "IF":  # Pillow would make all above 255 white
                raise UsageError(
                    f"{path} has mode {image.mode}, not 8 bits a channel: convert it first"
                )
            return image.convert("RGB")
    # Pillow's decoders raise SyntaxError and others for files that only begin well.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UsageError(f"{path} is not a readable image (is it cut off?): {error}") from error


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
