"""Upscale an image with a trained EDSR."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from PIL import Image

from edsr.images import check_format, open_image, save_image
from edsr.model import EDSR
from edsr.tiles import tile_corners, upscale_pixels
from edsr.weights import load_model
from hvd_ext import spatial
from hvd_ext.cli import at_least, progress, run
from hvd_ext.errors import UsageError
from training import ranks
from training.arguments import Parser, add_device_arguments, grid_of

PROGRAM = "edsr.upscale"
EXAMPLE = "python -m edsr.upscale photo.png large.png --checkpoint runs/x2/checkpoint.pt"
ADVICE = "lower --tile, or share the tiles among more ranks (--grid)"


def parser() -> Parser:
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    cli.add_argument("input", type=Path, metavar="IN", help="image with 8 bits per channel")
    cli.add_argument(
        "output",
        type=Path,
        metavar="OUT",
        help="output image; its extension gives the format (RGB or RGBA)",
    )
    cli.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        help="checkpoint of edsr.train, or weights of EDSR-PyTorch or BasicSR",
    )
    cli.add_argument(
        "--tile",
        type=at_least(0),
        default=256,
        help="length of a tile in input pixels; 0 upscales the image as a whole",
    )
    cli.add_argument(
        "--grid",
        type=grid_of(2),
        metavar="HxW",
        help="ranks along height and width that share each tile, as in 2x2; start that many ranks",
    )
    cli.add_argument(
        "--self-ensemble",
        action="store_true",
        help="average over the eight orientations (EDSR+), for 8 times the work",
    )
    add_device_arguments(cli)
    return cli


def main(arguments: Sequence[str]) -> int:
    args, hvd = parser().parse_args(arguments), None
    if args.grid:
        args, hvd = ranks.start(parser(), arguments, exchange="none")
    with _errors(hvd):
        image, model = _open(args, hvd)
    if hvd:
        share(model, spatial.ProcessGrid(height=args.grid[0], width=args.grid[1]))
    leads = hvd is None or hvd.rank() == 0
    low = np.asarray(image.convert("RGB"))
    tile = args.tile or max(low.shape)
    tiles = len(tile_corners(image.height, image.width, tile))
    with progress("upscaling", tiles, shown=leads) as advance, ranks.enough_memory(ADVICE):
        pixels = upscale_pixels(model, low, tile, advance, ensemble=args.self_ensemble, keep=leads)
    with _errors(hvd):
        if leads:
            _save(args, image, Image.fromarray(pixels))
    return 0


def share(model: EDSR, grid: spatial.ProcessGrid) -> None:
    """Let the ranks of a grid compute each image together; all of them get the whole image."""
    spatial.convert(model, grid)
    model.register_forward_hook(lambda module, inputs, output: spatial.gather(output))


def _open(args: argparse.Namespace, hvd: ModuleType | None) -> tuple[Image.Image, EDSR]:
    if not args.output.parent.is_dir():
        raise UsageError(f"the folder {args.output.parent} does not exist: make it first")
    image = open_image(args.input)
    check_format(args.output, image.mode)
    model = load_model(args.checkpoint)
    if hvd is None:
        if args.threads:
            torch.set_num_threads(args.threads)
        return image, model.to(ranks.torch_device(args))
    height, width = args.grid
    if hvd.size() != height * width:
        raise UsageError(
            f"--grid {height}x{width} takes {height * width} ranks, not {hvd.size()}: start as "
            "many, or change --grid"
        )
    return image, model.to(ranks.device(args, hvd))


def _save(args: argparse.Namespace, image: Image.Image, result: Image.Image) -> None:
    if image.mode == "RGBA":
        alpha = image.getchannel("A").resize(result.size, Image.Resampling.BICUBIC)
        result.putalpha(alpha)
    save_image(result, args.output, _rgb_profile(image))
    print(f"{args.output}: {image.width}x{image.height} -> {result.width}x{result.height}")


def _rgb_profile(image: Image.Image) -> bytes | None:
    """The ICC profile of an image that was RGB in its file; others do not fit the result."""
    profile: bytes = image.info.get("icc_profile") or b""
    return profile if profile[16:20] == b"RGB " else None


def _errors(hvd: ModuleType | None) -> AbstractContextManager[None]:
    return ranks.collective_errors(hvd, PROGRAM) if hvd else nullcontext()


if __name__ == "__main__":
    run(main, PROGRAM)
