"""Images in and out: whole or refused, and smaller ones made by bicubic."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from edsr import bicubic
from edsr.bicubic import Pixels
from hvd_ext.data.packed.folders import SUFFIXES
from hvd_ext.data.packed.folders import find_images as list_images
from hvd_ext.data.packed.images import decode_image
from hvd_ext.errors import UsageError
from hvd_ext.system.files import atomic_path

MATLAB = "matlab"
# Whose bicubic makes the small images: imresize, as in the literature, or Pillow's resize,
# which mirrors no borders.
KERNELS = (MATLAB, "pillow")


def find_images(path: Path, program: str = "") -> list[Path]:
    """The image itself, or the images of a folder by name, so that all ranks agree.

    Args:
        path: an image, or a folder.
        program: says on standard error what else the folder has; "": nothing is said.

    Raises:
        UsageError: the path does not exist, or the folder holds no image.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path} does not exist: name a folder of images")
    found = list_images(path)
    if not found.names:
        raise UsageError(f"{path} holds no image ({' '.join(SUFFIXES)}): name another folder")
    if program and found.left_out:
        print(f"{program}: left out in {path}: {found.describe_left_out()}", file=sys.stderr)
    return [path / name for name in found.names]


def open_image(path: Path, data: bytes | None = None) -> Image.Image:
    """Decode an image, upright, in mode RGB, or RGBA if it has transparency.

    Args:
        path: the file, or its name in errors.
        data: content of the file, if it is read already.

    Raises:
        UsageError: it is not an image, is cut off, is far too large, or has more than 8 bits
            a channel.
    """
    upright = decode_image(path if data is None else data, path)
    return upright.convert("RGBA" if upright.has_transparency_data else "RGB")


def load_rgb(path: Path, data: bytes | None = None) -> Pixels:
    """Read an image as (H, W, 3), without its transparency.

    Args:
        path: the file, or its name in errors.
        data: content of the file, if it is read already.

    Raises:
        UsageError: as `open_image`.
    """
    return np.asarray(open_image(path, data).convert("RGB"))


def save_image(image: Image.Image, path: Path, profile: bytes | None = None) -> None:
    """Write an image in the format of the name's suffix.

    Args:
        image: the image.
        path: the output file.
        profile: ICC profile of the colors.

    Raises:
        UsageError: as `check_format`.
        HvdExtError: the file cannot be written.
    """
    check_format(path, image.mode)
    with atomic_path(path) as temporary:
        image.save(temporary, icc_profile=profile)


def check_format(path: Path, mode: str) -> None:
    """See that the format that the name's ending says can hold an image of this mode.

    Raises:
        UsageError: it cannot, or the ending says no format.
    """
    file_format = Image.registered_extensions().get(path.suffix.lower())
    try:
        Image.new(mode, (1, 1)).save(io.BytesIO(), file_format or "")
    except (KeyError, OSError, ValueError) as error:
        raise UsageError(f"{path} cannot hold an image of mode {mode}: end it in .png") from error


def resize_bicubic(pixels: Pixels, height: int, width: int, kernel: str = MATLAB) -> Pixels:
    """(H, W, C) -> (height, width, C); antialiased when it shrinks.

    Args:
        pixels: the image.
        height: height of the result.
        width: width of the result.
        kernel: one of KERNELS; whose bicubic it is.
    """
    if kernel == MATLAB:
        return bicubic.resize(pixels, height, width)
    resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(resized)


def shrink(pixels: Pixels, scale: int, kernel: str = MATLAB) -> tuple[Pixels, Pixels]:
    """The pair (low, high): `pixels` cut to a multiple of `scale`, and its 1/scale."""
    height, width = (length // scale for length in pixels.shape[:2])
    high = pixels[: height * scale, : width * scale]
    return resize_bicubic(high, height, width, kernel), high
