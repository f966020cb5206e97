"""Cut simulated universes, as the public CosmoFlow data hold them, into cubes to train on.

A universe is an HDF5 file with the counts of particles in cells, `full` (512, 512, 512, 4)
with the redshifts last, and the parameters that made it, scaled to -1..1, `unitPar` (4,).
Its cubes follow one another and have its labels, by which the trainer knows them as one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cosmoflow.model import CHANNELS, PARAMETERS, WIDTHS
from hvd_ext.cli import exit_on_sigterm, progress, run
from hvd_ext.errors import UsageError
from hvd_ext.system.files import atomic_path, make_folder
from training.arguments import Parser
from training.samples.fields import Array

PROGRAM = "cosmoflow.prepare"
EXAMPLE = "python -m cosmoflow.prepare universes --width 128 --output cubes"
COUNTS, LABELS = "full", "unitPar"
_SUFFIXES = (".hdf5", ".h5")
_ROUNDING = 1e-6  # rounding of a parameter at the end of its range, which was scaled in float32


def parser() -> Parser:
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    cli.add_argument(
        "universes",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="HDF5 files, or folders of HDF5 files",
    )
    cli.add_argument("--width", type=int, choices=WIDTHS, default=128, help="width of the cubes")
    cli.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="DIR",
        help="output folder for cubes.npy and labels.npy",
    )
    cli.add_argument("--json", action="store_true", help="print JSON instead of one line")
    return cli


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    paths = find_universes(args.universes)
    layouts = {path: _layout(path, args.width) for path in paths}
    (side, dtype), *_ = layouts.values()
    for path, layout in layouts.items():
        if layout != (side, dtype):
            raise UsageError(
                f"{path} holds {layout[0]} cells a side in {layout[1]}, {paths[0]} {side} in "
                f"{dtype}: prepare them apart"
            )
    labels = np.array([_read_labels(path) for path in paths], np.float32)
    per_universe = (side // args.width) ** 3
    make_folder(args.output)
    _write_cubes(args, paths, per_universe, dtype)
    labels = np.repeat(labels, per_universe, axis=0)
    header = {"descr": labels.dtype.str, "fortran_order": False, "shape": labels.shape}
    with atomic_path(args.output / "labels.npy") as temporary, temporary.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(labels.tobytes())  # np.save names no cause if a disk is full
    found = {"universes": len(paths), "cubes": len(paths) * per_universe, "width": args.width}
    if args.json:
        print(json.dumps({**found, "dtype": str(dtype), "output": str(args.output)}, indent=2))
    else:
        print(
            f"{args.output}: {found['cubes']} cubes of {args.width} in {dtype}, of "
            f"{len(paths)} universes of {side}"
        )
    return 0


def find_universes(paths: Sequence[Path]) -> list[Path]:
    """HDF5 files and those within folders, each folder's in order, except for hidden files.

    Raises:
        UsageError: there are none, or one is named twice.
    """
    found: dict[Path, Path] = {}
    for named in paths:
        for path in _within(named) if named.is_dir() else [named]:
            if path.resolve() in found:
                raise UsageError(
                    f"{path} is named twice: name each file, or the folder of it, once"
                )
            found[path.resolve()] = path
    if not found:
        raise UsageError(f"{', '.join(map(str, paths))}: no {' or '.join(_SUFFIXES)} file is there")
    return list(found.values())


def _within(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in _SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def cut(counts: Any, width: int) -> Iterator[Array]:
    """Cubes (4, width, width, width) of a universe (side, side, side, 4), read slab by slab."""
    side = counts.shape[0]
    for z in range(0, side, width):
        slab = np.moveaxis(np.asarray(counts[z : z + width]), -1, 0)
        for y in range(0, side, width):
            for x in range(0, side, width):
                yield slab[:, :, y : y + width, x : x + width]


def _write_cubes(
    args: argparse.Namespace, paths: Sequence[Path], per_universe: int, dtype: np.dtype[Any]
) -> None:
    path = args.output / "cubes.npy"
    shape = (len(paths) * per_universe, CHANNELS, *(args.width,) * 3)
    header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    with (
        progress("cutting", shape[0]) as advance,
        atomic_path(path) as temporary,
        temporary.open("wb") as stream,
    ):
        np.lib.format.write_array_header_1_0(stream, header)
        for number, universe in enumerate(paths):
            for done, cube in enumerate(_cubes(universe, args.width), start=1):
                stream.write(cube.tobytes())
                advance(number * per_universe + done)


def _cubes(path: Path, width: int) -> Iterator[Array]:
    with _open(path) as file:
        cubes = cut(file[COUNTS], width)
        while True:
            try:
                cube = next(cubes)
            except StopIteration:
                return
            except OSError as error:
                raise UsageError(f"{path} is damaged: {error}: fetch it again") from error
            if not (np.isfinite(cube).all() and cube.min() >= 0):
                raise UsageError(
                    f"{path}: {COUNTS} holds {cube.min()}, which is no count of particles: leave "
                    "this file out"
                )
            yield cube


def _layout(path: Path, width: int) -> tuple[int, np.dtype[Any]]:
    """Cells along a side, and the type of the counts.

    Raises:
        UsageError: the file is not a universe, or cannot be cut so.
    """
    with _open(path) as file:
        # A group has no shape, and an empty dataset none either.
        counts, labels = (file.get(name) for name in (COUNTS, LABELS))
        missing = [
            name
            for name, data in ((COUNTS, counts), (LABELS, labels))
            if getattr(data, "shape", None) is None or data.dtype.kind not in "iuf"
        ]
        if missing:
            raise UsageError(
                f"{path} has no numbers {' and no numbers '.join(missing)}: give files with "
                f"{COUNTS} (W, W, W, {CHANNELS}) and {LABELS} ({PARAMETERS},)"
            )
        side = counts.shape[0] if counts.shape else 0
        if counts.shape != (side, side, side, CHANNELS) or labels.shape != (PARAMETERS,):
            raise UsageError(
                f"{path}: {COUNTS} {counts.shape} and {LABELS} {labels.shape} are not "
                f"(W, W, W, {CHANNELS}) and ({PARAMETERS},)"
            )
        if side == 0 or side % width:
            raise UsageError(f"{path}: {side} cells a side are not a multiple of --width {width}")
        return side, counts.dtype


def _read_labels(path: Path) -> Array:
    with _open(path) as file:
        labels = np.asarray(file[LABELS])
    if not np.isfinite(labels).all():
        raise UsageError(f"{path}: {LABELS} {labels} are not finite: leave this file out")
    if np.abs(labels).max() > 1 + _ROUNDING:
        raise UsageError(f"{path}: {LABELS} {labels} are not within -1..1: leave this file out")
    return labels


def _open(path: Path) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise UsageError("h5py is not installed: pip install h5py") from error
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise UsageError(f"{path} is not an HDF5 file that can be read: {error}") from error


if __name__ == "__main__":
    exit_on_sigterm()  # no part of a file stays
    run(main, PROGRAM)
