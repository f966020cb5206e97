"""Image files, decoded, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageOps

from hvd_ext.errors import UsageError


def read_image(file: Path | BinaryIO, name: object) -> Image.Image:
    """A decoded image of 8 bits a channel, upright.

    Args:
        file: what is read.
        name: what errors call it.

    Raises:
        UsageError: it is not an image, is cut off, is far too large, or has more than 8 bits
            a channel.
    """
    try:
        with Image.open(file) as image:
            image.load()
            upright = ImageOps.exif_transpose(image)
    except FileNotFoundError as error:
        raise UsageError(f"{name} does not exist: name an image") from error
    # Pillow's decoders raise SyntaxError and others for files that only begin well.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UsageError(f"{name} is not a readable image (is it cut off?): {error}") from error
    if upright.mode[0] in "IF":  # Pillow would make all above 255 white
        raise UsageError(f"{name} has mode {upright.mode}, not 8 bits a channel: convert it first")
    return upright
