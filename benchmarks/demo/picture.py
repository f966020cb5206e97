"""The demo's picture: bicubic, EDSR and the original, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

_ZOOM, _MARGIN, _CAPTION = 3, 12, 40

Box = tuple[int, int, int, int]


def shrink(original: Path, low: Path, scale: int) -> None:
    """Write `original` at 1/scale of its size, by Pillow's bicubic."""
    image = Image.open(original).convert("RGB")
    size = (image.width // scale, image.height // scale)
    image.resize(size, Image.Resampling.BICUBIC).save(low)


def draw(
    low: Path, edsr: Path, original: Path, crop: Box, psnr_db: Mapping[str, float], output: Path
) -> None:
    """Draw the same crop of three images, enlarged so that pixels are seen.

    Args:
        low: the shrunk image, which is enlarged again by bicubic.
        edsr: the shrunk image, as EDSR enlarges it.
        original: what both should be.
        crop: left, top, right, bottom in pixels of the original.
        psnr_db: bicubic_rgb_db and edsr_rgb_db, for the captions.
        output: the picture.
    """
    truth = Image.open(original).convert("RGB")
    panels = [
        (
            f"bicubic  {psnr_db['bicubic_rgb_db']:.2f} dB",
            Image.open(low).resize(truth.size, Image.Resampling.BICUBIC),
        ),
        (f"EDSR x2  {psnr_db['edsr_rgb_db']:.2f} dB", Image.open(edsr).convert("RGB")),
        ("original", truth),
    ]
    width = (crop[2] - crop[0]) * _ZOOM
    height = (crop[3] - crop[1]) * _ZOOM
    canvas = Image.new(
        "RGB", (3 * width + 4 * _MARGIN, height + _CAPTION + 2 * _MARGIN), (250, 250, 250)
    )
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(size=22)
    for index, (caption, image) in enumerate(panels):
        left = _MARGIN + index * (width + _MARGIN)
        enlarged = image.crop(crop).resize((width, height), Image.Resampling.NEAREST)
        canvas.paste(enlarged, (left, _MARGIN))
        pen.text((left, height + _MARGIN + 6), caption, fill=(30, 30, 30), font=font)
    canvas.save(output)
