"""Choices behind a super-resolution metric: the bicubic kernel, the color space, the shave.

The same pictures are shrunk by MATLAB's bicubic and by Pillow's, enlarged again by the same
and by a network if a checkpoint is given, and evaluated on RGB and on luma with both usual
shaves. Two figures can be compared where these choices are the same.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from scipy import stats

from benchmarks import harness
from edsr import photographs
from edsr.bicubic import Pixels
from edsr.evaluate import TILE
from edsr.images import KERNELS, find_images, load_rgb, resize_bicubic, shrink
from edsr.metrics import psnr_db, ssim
from edsr.model import EDSR
from edsr.tiles import upscale_pixels
from edsr.weights import load_model
from hvd_ext.cli import progress

EXAMPLE = "--scale 2 --json protocol.json"
FIGURES = {"psnr_db": psnr_db, "ssim": ssim}

Judged = dict[tuple[str, str, str, int], dict[str, list[float]]]


def main(arguments: Sequence[str]) -> int:
    parser = harness.parser("super_resolution.protocol", __doc__, EXAMPLE)
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="pictures (scikit-image's photographs in color)"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--checkpoint", type=Path, help="network to compare with bicubic")
    source.add_argument("--scale", type=int, choices=(2, 3, 4), default=2, help="without one (2)")
    options = parser.parse_args(arguments)
    model = load_model(options.checkpoint) if options.checkpoint else None
    scale = model.architecture.scale if model else options.scale
    with tempfile.TemporaryDirectory() as folder:
        if options.data is None:
            photographs.main([folder])
        paths = find_images(options.data) if options.data else _in_colour(Path(folder))
        judged = _judge(paths, scale, model)
    rows = [
        {"method": method, "kernel": kernel, "colours": colours, "shave": shave}
        | {name: _mean(values) for name, values in figures.items()}
        for (method, kernel, colours, shave), figures in judged.items()
    ]
    pictures = [path.name for path in paths]
    if options.json:
        harness.write_result(options.json, {"scale": scale, "pictures": pictures, "rows": rows})
    Console().print(_table(rows, scale, pictures))
    return 0


def _in_colour(folder: Path) -> list[Path]:
    paths = [path for part in ("train", "test") for path in find_images(folder / part)]
    return [path for path in paths if not _is_gray(load_rgb(path))]


def _is_gray(pixels: Pixels) -> bool:
    return bool((pixels == pixels[..., :1]).all())


def _judge(paths: Sequence[Path], scale: int, model: EDSR | None) -> Judged:
    judged: Judged = {}
    with progress("judging", len(paths)) as advance:
        for done, path in enumerate(paths, start=1):
            for kernel in KERNELS:
                low, high = shrink(load_rgb(path), scale, kernel)
                for method, made in _enlarged(low, high, kernel, model):
                    for colours, luma in (("RGB", False), ("Y", True)):
                        for shave in (scale, scale + 6):
                            row = judged.setdefault((method, kernel, colours, shave), {})
                            for name, figure in FIGURES.items():
                                value = figure(made, high, shave, luma=luma)
                                row.setdefault(name, []).append(value)
            advance(done, path.name)
    return judged


def _enlarged(
    low: Pixels, high: Pixels, kernel: str, model: EDSR | None
) -> Iterator[tuple[str, Pixels]]:
    yield "bicubic", resize_bicubic(low, high.shape[0], high.shape[1], kernel)
    if model:
        yield "EDSR", upscale_pixels(model, low, TILE)


def _mean(values: Sequence[float]) -> dict[str, float]:
    """The mean over the pictures, with its 95 % interval (bootstrap, BCa)."""
    mean = statistics.fmean(values)
    if len(set(values)) < 2:
        return {"mean": mean}
    found = stats.bootstrap((values,), statistics.fmean, vectorized=False, rng=0)
    low, high = found.confidence_interval
    return {"mean": mean, "low": float(low), "high": float(high)}


def _table(rows: Sequence[Mapping[str, object]], scale: int, pictures: Sequence[str]) -> Table:
    caption = f"mean of {len(pictures)} pictures (95 % interval): {', '.join(pictures)}"
    table = Table(title=f"x{scale} by protocol", caption=caption)
    for heading in ("method", "kernel", "colours", "shave"):
        table.add_column(heading)
    table.add_column("PSNR, dB", justify="right")
    table.add_column("SSIM", justify="right")
    for row in rows:
        cells = [str(row[name]) for name in ("method", "kernel", "colours", "shave")]
        table.add_row(*cells, _shown(row["psnr_db"], 2), _shown(row["ssim"], 4))
    return table


def _shown(figure: object, digits: int) -> str:
    assert isinstance(figure, dict)
    text = f"{figure['mean']:.{digits}f}"
    if "low" in figure:
        text += f" ({figure['low']:.{digits}f} to {figure['high']:.{digits}f})"
    return text


if __name__ == "__main__":
    harness.run(main, "super_resolution.protocol")
