"""Peak signal-to-noise ratio of EDSR and of bicubic on held-out images.

Each image is shrunk by Pillow's bicubic and enlarged again. Pillow's bicubic is not
MATLAB's imresize, so these figures do not compare with published ones.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from edsr.images import Pixels, find_images, load_rgb, resize_bicubic, shrink
from edsr.model import EDSR, load_model
from edsr.tiles import upscale_pixels
from hvd_ext.cli import progress, run
from hvd_ext.errors import UsageError
from training.arguments import Parser

PROGRAM = "edsr.evaluate"
EXAMPLE = "python -m edsr.evaluate --checkpoint runs/x2/checkpoint.pt --data photographs/test"
NOTE = "low resolution made by Pillow's bicubic, which is not MATLAB's imresize"
TILE = 256

# Weights of R, G, B in luma (ITU-R BT.601), over a range of 256.
_LUMA = np.array([65.738, 129.057, 25.064]) / 256


def psnr_db(result: Pixels, truth: Pixels, shave: int, *, luma: bool = False) -> float:
    """Peak signal-to-noise ratio in dB of two images (H, W, 3), infinite if they are equal.

    Args:
        result: what is judged.
        truth: what it should be.
        shave: pixels left out along each edge.
        luma: compare luma alone, as is usual for Set5, Set14, B100 and Urban100.
    """
    difference: NDArray[np.float64] = (result.astype(np.float64) - truth) / 255
    if luma:
        difference = difference @ _LUMA
    error = float(np.mean(difference[shave:-shave, shave:-shave] ** 2))
    return float(-10 * np.log10(error)) if error else float("inf")


def judge(model: EDSR, image: Pixels) -> dict[str, float]:
    """PSNR of one image in dB: RGB (shave scale + 6, as for DIV2K) and Y (shave scale).

    Raises:
        UsageError: the image is too small for the shave.
    """
    scale = model.architecture.scale
    low, high = shrink(image, scale)
    height, width = high.shape[:2]
    if min(height, width) <= 2 * (scale + 6):
        raise UsageError(f"an image of {width}x{height} is too small: leave it out")
    results = {
        "bicubic": resize_bicubic(low, height, width),
        "edsr": upscale_pixels(model, low, TILE),
    }
    figures = {f"{name}_rgb_db": psnr_db(r, high, scale + 6) for name, r in results.items()}
    luma = {f"{name}_y_db": psnr_db(r, high, scale, luma=True) for name, r in results.items()}
    return figures | luma


def parser() -> Parser:
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    cli.add_argument("--checkpoint", type=Path, required=True, help="a file of edsr.train")
    cli.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="PATH", help="images or folders"
    )
    cli.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return cli


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    paths = [path for folder in args.data for path in find_images(folder)]
    model = load_model(args.checkpoint)
    rows = {}
    with progress("evaluating", len(paths)) as advance:
        for path in paths:
            rows[str(path)] = judge(model, load_rgb(path))
            advance(len(rows), "")
    mean = {
        figure: statistics.fmean(row[figure] for row in rows.values())
        for figure in next(iter(rows.values()))
    }
    if args.json:
        scale = model.architecture.scale
        print(json.dumps({"scale": scale, "note": NOTE, "images": rows, "mean": mean}, indent=2))
    else:
        _print_table(model, rows, mean)
    return 0


def _print_table(model: EDSR, rows: dict[str, dict[str, float]], mean: dict[str, float]) -> None:
    table = Table(title=f"PSNR in dB, EDSR {model.architecture}", caption=NOTE)
    table.add_column("image")
    for heading in ("bicubic RGB", "EDSR RGB", "gain", "bicubic Y", "EDSR Y", "gain"):
        table.add_column(heading, justify="right")
    for name, row in [(Path(path).name, row) for path, row in rows.items()] + [("mean", mean)]:
        cells = [name]
        for colours in ("rgb", "y"):
            bicubic, edsr = row[f"bicubic_{colours}_db"], row[f"edsr_{colours}_db"]
            cells += [f"{bicubic:.2f}", f"{edsr:.2f}", f"{edsr - bicubic:+.2f}"]
        if name == "mean":
            table.add_section()
        table.add_row(*cells)
    Console().print(table)


if __name__ == "__main__":
    run(main, PROGRAM)
