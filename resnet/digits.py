"""Write scikit-learn's handwritten digits as class folders: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from hvd_ext.cli import run
from hvd_ext.errors import UsageError
from hvd_ext.system.files import atomic_path, make_folder
from training.arguments import Parser

PROGRAM = "resnet.digits"
EXAMPLE = "python -m resnet.digits digits"

# One image of this many is for validation.
_HELD_OUT = 6


def parser() -> Parser:
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    cli.add_argument(
        "folder", type=Path, metavar="DIR", help="output folder for train/DIGIT and val/DIGIT"
    )
    return cli


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UsageError("scikit-learn is not installed: pip install scikit-learn") from error
    digits = load_digits()
    for number, (image, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        # A margin, so that a cut of the centre keeps all of the digit. 16 is white.
        pixels = np.pad(image * 255 / 16, 1).round().astype(np.uint8)
        folder = args.folder / ("train" if number % _HELD_OUT else "val") / str(digit)
        make_folder(folder)
        with atomic_path(folder / f"{number:04}.png") as temporary:
            Image.fromarray(pixels).save(temporary)
    kept = -(-len(digits.target) // _HELD_OUT)
    print(f"{args.folder}: {len(digits.target) - kept} to train, {kept} to val")
    return 0


if __name__ == "__main__":
    run(main, PROGRAM)
