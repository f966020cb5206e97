"""Upscale an image with a trained EDSR."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from edsr.images import check_format, open_image, save_image
from edsr.tiles import tile_corners, upscale_pixels
from edsr.weights import load_model
from hvd_ext.cli import at_least, progress, run
from hvd_ext.errors import UsageError
from training.arguments import Parser, add_device_arguments
from training.ranks import torch_device

PROGRAM = "edsr.upscale"
EXAMPLE = "python -m edsr.upscale photo.png large.png --checkpoint runs/x2/checkpoint.pt"


def parser() -> Parser:
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    cli.add_argument("input", type=Path, metavar="IN", help="any image of 8 bits a channel")
    cli.add_argument(
        "output", type=Path, metavar="OUT", help="its ending names the format; RGB, or RGBA"
    )
    cli.add_argument("--checkpoint", type=Path, required=True, help="as of edsr.evaluate")
    cli.add_argument(
        "--tile", type=at_least(1), default=256, help="length of a tile, in input pixels"
    )
    cli.add_argument(
        "--self-ensemble",
        action="store_true",
        help="mean over the eight orientations (EDSR+): 8 times the work",
    )
    add_device_arguments(cli)
    return cli


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    if not args.output.parent.is_dir():
        raise UsageError(f"the folder {args.output.parent} does not exist: make it first")
    image = open_image(args.input)
    check_format(args.output, image.mode)
    model = load_model(args.checkpoint).to(torch_device(args))
    if args.threads:
        torch.set_num_threads(args.threads)
    low = np.asarray(image.convert("RGB"))
    tiles = len(tile_corners(image.height, image.width, args.tile))
    with progress("upscaling", tiles) as advance:
        result = Image.fromarray(
            upscale_pixels(model, low, args.tile, advance, ensemble=args.self_ensemble)
        )
    if image.mode == "RGBA":
        alpha = image.getchannel("A").resize(result.size, Image.Resampling.BICUBIC)
        result.putalpha(alpha)
    save_image(result, args.output)
    print(f"{args.output}: {image.width}x{image.height} -> {result.width}x{result.height}")
    return 0


if __name__ == "__main__":
    run(main, PROGRAM)
