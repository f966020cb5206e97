"""Unreadable images: found before the first step, or skipped and counted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from hvd_ext.errors import UsageError
from resnet.folder import ClassPack, Images, Opened
from training.samples.checking import describe, everyones, find_unusable, refuse_unusable


def check_images(
    sets: Sequence[Images], args: argparse.Namespace, hvd: ModuleType, program: str
) -> None:
    """Check all images before the first step. A collective.

    Args:
        sets: sets of images, the same on all ranks.
        args: --check-images, --skip-unreadable and --workers.
        hvd: the exchange.
        program: the name that errors begin with.

    Raises:
        SystemExit: images cannot be read, and must not be skipped; rank 0 has named them.
    """
    all_images = [(images, index) for images in sets for index in range(len(images))]

    def check(number: int) -> None:
        images, index = all_images[number]
        if args.check_images:
            images[index]
        else:
            images.check(index)

    unusable = find_unusable(hvd, len(all_images), check, args.workers)
    refuse_unusable(hvd, program, unusable, len(all_images), skip=args.skip_unreadable)


class ReadableImages:
    """Images in which the next image replaces one that cannot be read.

    So all steps have the same number of images, and the same ones on any number of ranks.

    Attributes:
        unreadable: the error of each image that could not be read.
    """

    def __init__(self, images: Images) -> None:
        self._images = images
        self.unreadable: dict[int, str] = {}

    def __getitem__(self, index: int) -> Opened:
        """The image `index`, or the next one that can be read.

        Raises:
            UsageError: none can be read.
        """
        count = len(self._images)
        for number in range(index, index + count):
            try:
                if number % count not in self.unreadable:
                    return self._images[number % count]
            except UsageError as error:
                self.unreadable[number % count] = str(error)
        raise UsageError(f"none of {count} images can be read: {self.unreadable[index]}")

    def in_place_of(self, index: int, error: UsageError) -> Opened:
        """The next image that can be read."""
        self.unreadable[index] = str(error)
        return self[index]

    def report(self, hvd: ModuleType, program: str) -> None:
        """Say on rank 0 which images could not be read so far. A collective."""
        unreadable = everyones(hvd, self.unreadable)
        if unreadable and hvd.rank() == 0:
            text = describe(unreadable, len(self._images))
            print(f"{program}: replaced by the next: {text}", file=sys.stderr, flush=True)


class ReadableRecords(ReadableImages):
    """The images of a packed file, which a store can keep."""

    def __init__(self, images: ClassPack) -> None:
        super().__init__(images)
        self.lengths, self._pack = images.lengths, images

    def record(self, index: int) -> NDArray[np.uint8]:
        """Return an image as it is in the file."""
        return self._pack.record(index)

    def decode(self, index: int, record: NDArray[np.uint8]) -> Opened:
        """The image that a record holds, and its label."""
        return self._pack.decode(index, record)


def readable(images: Images) -> ReadableImages:
    """Make images in which the next one replaces one that cannot be read."""
    return ReadableRecords(images) if isinstance(images, ClassPack) else ReadableImages(images)
