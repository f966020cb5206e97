"""PSNR and SSIM of EDSR and of bicubic on held-out images, by the literature's protocol.

On RGB scale + 6 pixels are shaved off along each edge, as is usual for DIV2K; on luma (Y)
scale pixels, as is usual for Set5, Set14, B100 and Urban100. Each --data is a set with a
separate mean. Several ranks divide the images among them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.table import Table

from edsr.bicubic import Pixels
from edsr.images import KERNELS, MATLAB, resize_bicubic, save_image
from edsr.metrics import least_length, psnr_db, ssim
from edsr.model import EDSR
from edsr.pairs import Pairs, folder_images
from edsr.tiles import upscale_pixels
from edsr.weights import load_model
from hvd_ext.cli import progress, run
from hvd_ext.errors import UsageError
from hvd_ext.system.files import make_folder
from training import ranks
from training.arguments import Parser, add_device_arguments
from training.samples.checking import find_unusable, refuse_unusable

PROGRAM = "edsr.evaluate"
EXAMPLE = "python -m edsr.evaluate --checkpoint runs/x2/checkpoint.pt --data photographs/test"
# In pixels of the small image: exact, whatever it is.
TILE = 512
# Of RGB, in pixels beyond the scale.
SHAVE = 6

Figures = dict[str, float]


def parser() -> Parser:
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    cli.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        help="checkpoint of edsr.train, or weights of EDSR-PyTorch or BasicSR",
    )
    cli.add_argument(
        "--data",
        type=Path,
        nargs="+",
        required=True,
        metavar="PATH",
        help="images or folders of images; each argument is a set",
    )
    cli.add_argument(
        "--low",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="folder of downscaled images for each --data, named 0801x2.png or 0801.png for "
        "0801.png; without it images are downscaled",
    )
    cli.add_argument(
        "--kernel",
        choices=KERNELS,
        default=MATLAB,
        help="bicubic implementation for downscaling and for the reference",
    )
    cli.add_argument(
        "--self-ensemble",
        action="store_true",
        help="average over the eight orientations (EDSR+), for 8 times the work",
    )
    cli.add_argument(
        "--save-results", type=Path, metavar="DIR", help="folder for the upscaled images (PNG)"
    )
    cli.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_device_arguments(cli)
    return cli


def main(arguments: Sequence[str]) -> int:
    args, hvd = ranks.start(parser(), arguments, exchange="none")
    rank, size = hvd.rank(), hvd.size()
    with ranks.collective_errors(hvd, PROGRAM):
        device = ranks.device(args, hvd)
        model = load_model(args.checkpoint).to(device)
        chosen = _open(args, model.architecture.scale, PROGRAM if rank == 0 else "")
        if args.save_results:
            _require_other_names(args, model, chosen)
            if rank == 0:
                make_folder(args.save_results)
    check = [partial(pairs.check, number) for _, pairs, number in chosen]
    unusable = find_unusable(hvd, len(chosen), lambda place: check[place]())
    refuse_unusable(hvd, PROGRAM, unusable, len(chosen))
    mine: dict[int, Figures] = {}
    with ranks.collective_errors(hvd, PROGRAM):
        places = range(rank, len(chosen), size)
        with progress("evaluating", len(places), shown=rank == 0) as advance:
            for place in places:
                mine[place] = _judge_file(args, model, *chosen[place][1:])
                advance(len(mine), "")
    found = {place: row for part in hvd.allgather_object(mine) for place, row in part.items()}
    if rank == 0:
        sets: dict[str, dict[str, Figures]] = {}
        for place, (name, pairs, number) in enumerate(chosen):
            sets.setdefault(name, {})[str(pairs.images.name(number))] = found[place]
        _report(args, model, sets)
    return 0


def judge(
    model: EDSR,
    high: Pixels,
    low: Pixels,
    kernel: str = MATLAB,
    *,
    ensemble: bool = False,
) -> tuple[Figures, Pixels]:
    """PSNR in dB and SSIM of one image, on RGB (shave scale + 6) and Y (shave scale).

    Args:
        model: the model to compare with bicubic.
        high: the truth, (scale H, scale W, 3).
        low: the picture to enlarge, (H, W, 3).
        kernel: whose bicubic it is compared with.
        ensemble: take the mean over the eight orientations.

    Returns:
        the figures, and the image that the model made.

    Raises:
        UsageError: the image is too small for the shave.
    """
    scale = model.architecture.scale
    height, width = high.shape[:2]
    if min(height, width) < least_length(scale + SHAVE):
        raise UsageError(f"an image of {width}x{height} is too small to evaluate: leave it out")
    made = upscale_pixels(model, low, TILE, ensemble=ensemble)
    results = {"bicubic": resize_bicubic(low, height, width, kernel), "edsr": made}
    figures = {}
    for name, result in results.items():
        for colors, shave, luma in (("rgb", scale + SHAVE, False), ("y", scale, True)):
            figures[f"{name}_{colors}_db"] = psnr_db(result, high, shave, luma=luma)
            figures[f"{name}_{colors}_ssim"] = ssim(result, high, shave, luma=luma)
    return figures, made


def _open(args: argparse.Namespace, scale: int, program: str) -> list[tuple[str, Pairs, int]]:
    """Each image: the name of its set, its pairs, and its number in them."""
    if args.low and len(args.low) != len(args.data):
        raise UsageError(
            f"--low names {len(args.low)} folders for {len(args.data)} of --data: give as many"
        )
    chosen = []
    for data, low in zip(args.data, args.low or [None] * len(args.data), strict=True):
        images = folder_images(data, program)
        pairs = Pairs(images, scale, least_length(scale + SHAVE), low, args.kernel)
        chosen += [(str(data), pairs, number) for number in range(len(pairs))]
    return chosen


def _result(args: argparse.Namespace, model: EDSR, pairs: Pairs, number: int) -> Path:
    name = f"{pairs.images.name(number).stem}_x{model.architecture.scale}.png"
    return Path(args.save_results / name)


def _require_other_names(
    args: argparse.Namespace, model: EDSR, chosen: Sequence[tuple[str, Pairs, int]]
) -> None:
    """Raise UsageError if a result would replace another one."""
    sources: dict[Path, Path] = {}
    for _, pairs, number in chosen:
        source, result = pairs.images.name(number), _result(args, model, pairs, number)
        if result in sources:
            raise UsageError(
                f"--save-results: {sources[result]} and {source} would both be saved as {result}: "
                "evaluate them one after the other, in separate folders"
            )
        sources[result] = source


def _judge_file(args: argparse.Namespace, model: EDSR, pairs: Pairs, number: int) -> Figures:
    low, high = pairs[number]
    figures, made = judge(model, high, low, args.kernel, ensemble=args.self_ensemble)
    if args.save_results:
        save_image(Image.fromarray(made), _result(args, model, pairs, number))
    return figures


def _mean(rows: dict[str, Figures]) -> Figures:
    return {
        figure: statistics.fmean(row[figure] for row in rows.values())
        for figure in next(iter(rows.values()))
    }


def _report(args: argparse.Namespace, model: EDSR, sets: dict[str, dict[str, Figures]]) -> None:
    means = {name: _mean(rows) for name, rows in sets.items()}
    images = {path: row for rows in sets.values() for path, row in rows.items()}
    source = "given" if args.low else f"made by {args.kernel}'s bicubic"
    note = f"small images {source}; RGB shaved by scale + 6 pixels, Y by scale"
    if not args.json:
        for name, rows in sets.items():
            Console().print(_table(f"{name}: EDSR {model.architecture}", note, rows, means[name]))
        return
    found = {
        "scale": model.architecture.scale,
        "note": note,
        "kernel": args.kernel,
        "self_ensemble": args.self_ensemble,
        "images": images,
        "sets": means,
        "mean": _mean(images),
    }
    print(json.dumps(_in_json(found), indent=2))


def _in_json(value: Any) -> Any:
    """JSON has no number for the PSNR of equal images: null."""
    if isinstance(value, dict):
        return {key: _in_json(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(title: str, note: str, rows: dict[str, Figures], mean: Figures) -> Table:
    # Without blanks next to the lines it fits 80 columns.
    table = Table(title=title, caption=note, padding=0)
    table.add_column("image", overflow="fold")
    for heading in ("RGB dB", "bicubic", "gain", "SSIM", "Y dB", "bicubic", "gain", "SSIM"):
        table.add_column(heading, justify="right")
    for name, row in [(Path(path).name, row) for path, row in rows.items()] + [("mean", mean)]:
        cells = [name]
        for colors in ("rgb", "y"):
            bicubic, edsr = row[f"bicubic_{colors}_db"], row[f"edsr_{colors}_db"]
            cells += [f"{edsr:.2f}", f"{bicubic:.2f}", f"{edsr - bicubic:+.2f}"]
            cells += [f"{row[f'edsr_{colors}_ssim']:.4f}"]
        if name == "mean":
            table.add_section()
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    run(main, PROGRAM)
