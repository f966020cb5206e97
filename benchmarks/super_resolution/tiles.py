"""Error of upscaling in tiles whose margins are narrower than the network's field of view.

Pictures are shrunk, and enlarged again in tiles with margins of several widths, the last of
them the network's reach, with which tiles equal the whole. Narrow margins save work; what they
lose against the original, and by how much they differ from the exact result, is shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from edsr.bicubic import Pixels
from edsr.images import find_images, load_rgb, shrink
from edsr.metrics import psnr_db
from edsr.tiles import tile_corners, upscale_pixels
from edsr.weights import load_model
from hvd_ext.cli import at_least, progress

EXAMPLE = "--checkpoint runs/x2/checkpoint.pt --data photographs/test --json tiles.json"

Row = dict[str, float]


def main(arguments: Sequence[str]) -> int:
    parser = harness.parser("super_resolution.tiles", __doc__, EXAMPLE)
    parser.add_argument("--checkpoint", type=Path, required=True, help="as of edsr.evaluate")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="pictures")
    parser.add_argument("--tile", type=at_least(1), default=64, help="its length, in pixels (64)")
    parser.add_argument(
        "--margins", type=at_least(0), nargs="+", default=[0, 2, 5, 10], help="(0 2 5 10)"
    )
    options = parser.parse_args(arguments)
    model = load_model(options.checkpoint)
    scale = model.architecture.scale
    margins = [*(margin for margin in options.margins if margin < model.reach), model.reach]
    paths = find_images(options.data)
    found: dict[int, list[Row]] = {margin: [] for margin in margins}
    with progress("upscaling", len(paths)) as advance:
        for done, path in enumerate(paths, start=1):
            low, high = shrink(load_rgb(path), scale)
            exact = upscale_pixels(model, low, options.tile)
            for margin in margins:
                made = exact
                if margin < model.reach:
                    made = upscale_pixels(model, low, options.tile, margin=margin)
                found[margin].append(_judge(made, exact, high, low, options.tile, margin))
            advance(done, path.name)
    rows = [
        {"margin": margin}
        | {name: statistics.fmean(row[name] for row in judged) for name in FIGURES}
        for margin, judged in found.items()
    ]
    title = f"EDSR {model.architecture}, tiles of {options.tile}, {len(paths)} pictures"
    if options.json:
        harness.write_result(options.json, {"title": title, "rows": rows})
    Console().print(_table(title, rows))
    return 0


FIGURES = ("psnr_db", "lost_db", "lost_at_seams_db", "worst", "work")


def _judge(made: Pixels, exact: Pixels, high: Pixels, low: Pixels, tile: int, margin: int) -> Row:
    """Figures of one picture; at seams: within 4 pixels of where tiles of the result meet."""
    height, width, _ = low.shape
    scale = high.shape[0] // height
    rows, columns = (_near_seams(length * scale, tile * scale) for length in (height, width))
    seams = rows[:, None] | columns
    ours, best = (_db(_squared(image, high)[seams]) for image in (made, exact))
    computed = sum(
        (min(y + tile + margin, height) - max(y - margin, 0))
        * (min(x + tile + margin, width) - max(x - margin, 0))
        for y, x in tile_corners(height, width, tile)
    )
    judged = [psnr_db(image, high, scale, luma=False) for image in (made, exact)]
    return {
        "psnr_db": judged[0],
        "lost_db": judged[1] - judged[0],
        "lost_at_seams_db": best - ours,
        "worst": float(np.abs(made.astype(int) - exact).max()),
        "work": computed / (height * width),
    }


def _near_seams(length: int, tile: int) -> NDArray[np.bool_]:
    at = np.arange(length)
    near = np.minimum(at % tile, -at % tile) < 4
    return near & (at >= tile // 2) & (at < length - 4)


def _squared(image: Pixels, high: Pixels) -> NDArray[np.float64]:
    difference: NDArray[np.float64] = image.astype(np.float64) - high
    return difference**2


def _db(squared: NDArray[np.float64]) -> float:
    return float(10 * np.log10(255**2 / squared.mean()))


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title, caption="means; RGB, shaved by the scale; the last row is exact")
    for heading in ("margin", "PSNR, dB", "lost, dB", "at seams, dB", "worst pixel", "work"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row["margin"]),
            f"{row['psnr_db']:.3f}",
            f"{row['lost_db']:.3f}",
            f"{row['lost_at_seams_db']:.3f}",
            f"{row['worst']:.1f}",
            f"{row['work']:.2f}",
        )
    return table


if __name__ == "__main__":
    harness.run(main, "super_resolution.tiles")
