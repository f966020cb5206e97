"""Pictures of the terminal, and what each must be: SVG files in folders named golden."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

GOLDEN = Path(__file__).parents[2] / "single" / "hvprof" / "golden"
WIDTHS = (80, 120)
_WRITE = "HVD_EXT_TEST_WRITE_GOLDEN"


def check_picture(
    name: str,
    title: str,
    width: int,
    draw: Callable[[Console], object],
    folder: Path = GOLDEN,
) -> None:
    """Compare what is drawn with its picture, and see that it fits the terminal.

    Args:
        name: of the picture.
        title: above it, the command.
        width: of the terminal.
        draw: prints to the terminal it is given.
        folder: where the picture lies.
    """
    shown = Console(file=io.StringIO(), width=width, record=True, force_terminal=True)
    draw(shown)
    text = shown.export_text(clear=False)
    # A command to be copied is one line, and only those may be longer.
    long = [line for line in text.splitlines() if len(line.rstrip()) > width]
    assert [line for line in long if not line.startswith("   $ ")] == []
    picture = re.sub(r"terminal-\d+", "terminal", shown.export_svg(title=title))
    golden = folder / f"{name}_{width}.svg"
    if os.environ.get(_WRITE):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(picture)
    assert picture == golden.read_text(), f"{golden} differs: view it, then set {_WRITE}=1"
