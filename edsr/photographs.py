"""Write scikit-image's bundled photographs as a small training set: nothing is downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from hvd_ext.cli import run
from hvd_ext.errors import UsageError
from hvd_ext.system.files import atomic_path, make_folder
from training.arguments import Parser

PROGRAM = "edsr.photographs"
EXAMPLE = "python -m edsr.photographs photographs"

# Licenses as scikit-image's documentation states them.
PHOTOGRAPHS = {
    "train": {
        "hubble_deep_field.jpg": "public domain, NASA",
        "ihc.png": "no known copyright restrictions, CMMI",
        "retina.jpg": "CC0, by Mikael Haggstrom",
        "rocket.jpg": "public domain, SpaceX",
        "brick.png": "CC0, from CC0Textures",
        "camera.png": "CC0, by Lav Varshney",
        "coins.png": "no known copyright restrictions, Brooklyn Museum",
        "grass.png": "CC0, by linolafett",
        "gravel.png": "CC0, from CC0Textures",
    },
    # In color: RGB figures of gray pictures flatter.
    "test": {
        "astronaut.png": "public domain, NASA",
        "chelsea.png": "CC0, by Stefan van der Walt",
        "coffee.png": "CC0, by Rachel Michetti",
    },
}


def parser() -> Parser:
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    cli.add_argument(
        "folder", type=Path, metavar="DIR", help="output folder for train/, test/ and README.txt"
    )
    return cli


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        raise UsageError("scikit-image is not installed: pip install scikit-image")
    source = Path(spec.origin).parent / "data"
    notes = ["Photographs bundled with scikit-image.", ""]
    for part, licenses in PHOTOGRAPHS.items():
        make_folder(args.folder / part)
        for name, license in licenses.items():
            if not (source / name).is_file():
                raise UsageError(f"this scikit-image has no {name}: install 0.26")
            with atomic_path(args.folder / part / name) as temporary:
                shutil.copyfile(source / name, temporary)
            notes.append(f"{part}/{name}: {license}")
    with atomic_path(args.folder / "README.txt") as temporary:
        temporary.write_text("\n".join(notes) + "\n")
    print(f"{args.folder}: {', '.join(f'{len(p)} to {part}' for part, p in PHOTOGRAPHS.items())}")
    return 0


if __name__ == "__main__":
    run(main, PROGRAM)
