"""Image files: decoded, or refused in one line."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_ext.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

# Formats with at most 8 bits a channel, or with a header that says how many.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM", "GIF")
_HEAD_BYTES = 4096
_PNG = b"\x89PNG\r\n\x1a\n"


def decode_image(file: Path | bytes, name: object = None) -> Image.Image:
    """Decode an image of at most 8 bits a channel, upright.

    Args:
        file: an image file, or its content.
        name: its name in errors; None: its path.

    Raises:
        UsageError: it is not an image, is cut off, is far too large, has more than 8 bits a
            channel, or several pages.
    """
    from PIL import ImageOps

    with _opened(file, name) as image:
        image.load()
        return ImageOps.exif_transpose(image)


def image_size(file: Path | bytes, name: object = None) -> tuple[int, int]:
    """Read height and width of an upright image from its header only.

    Args:
        file: an image file, or its content.
        name: its name in errors; None: its path.

    Raises:
        UsageError: as `decode_image`, if the header shows it.
    """
    from PIL.ExifTags import Base

    with _opened(file, name) as image:
        width, height = image.size
        # Without this, Pillow would decode a whole PNG to find its orientation; a TIFF's size is
        # upright.
        lies = "exif" in image.info and image.getexif().get(Base.Orientation, 1) >= 5
        return (width, height) if lies else (height, width)


@contextmanager
def _opened(file: Path | bytes, name: object) -> Iterator[Image.Image]:
    from PIL import Image, UnidentifiedImageError

    name = file if name is None else name
    try:
        if isinstance(file, Path) and file.exists() and not file.is_file():
            raise UsageError(f"{name} is not a regular file: name an image")  # a pipe would block
        with io.BytesIO(file) if isinstance(file, bytes) else file.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
            stream.seek(0)
            with Image.open(stream, formats=_FORMATS) as image:
                _require_8_bits(image, head, name)
                yield image
    except UsageError:
        raise
    except FileNotFoundError as error:
        raise UsageError(f"{name} does not exist: name an image") from error
    except UnidentifiedImageError as error:
        raise UsageError(
            f"{name} is not a readable image (is it cut off?): it is none of {', '.join(_FORMATS)}"
        ) from error
    # Decoders raise any error for files of which only the beginning is valid.
    except Exception as error:
        raise UsageError(f"{name} is not a readable image (is it cut off?): {error}") from error


def _require_8_bits(image: Image.Image, head: bytes, name: object) -> None:
    """Raise UsageError for what Pillow would drop: bits above 8, and all pages but one."""
    from PIL.TiffImagePlugin import BITSPERSAMPLE, TiffImageFile

    bits = 8
    if head.startswith(_PNG):
        bits = head[24]
    elif image.format == "PPM":
        bits = _largest_value(head).bit_length()
    elif isinstance(image, TiffImageFile):
        bits = max(image.tag_v2.get(BITSPERSAMPLE, (1,)))
    if bits > 8:
        raise UsageError(f"{name} has {bits} bits a channel, not 8: convert it first")
    # Further pages of MPO, which phones write as .jpg, are previews of the first one.
    pages = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    if pages > 1:
        raise UsageError(f"{name} has {pages} pages or frames: save each as a separate file")


def _largest_value(head: bytes) -> int:
    """Return the third number of a PBM, PGM or PPM file; bitmaps have none."""
    lines = (line.partition(b"#")[0] for line in head.splitlines())
    magic, *numbers = b" ".join(lines).split(maxsplit=4)
    return 1 if magic in (b"P1", b"P4") else int(numbers[2])
