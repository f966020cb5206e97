"""The picture of hvprof's page in the docs: its first screen in light, the next in dark.

It takes Chromium on PATH, and a page that `hvprof report RUN --html PAGE` wrote. The headings in
the picture are also in its text "Description", where a test sees whether they are today's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from benchmarks import harness
from benchmarks.harness import BenchmarkError
from hvd_ext.cli import output_file
from testbed.browser import browser, find

# Of a half of the picture, and by how much the page is larger than it.
_WIDTH, _HEIGHT, _ZOOM = 800, 1040, 1.25
_HEADINGS = """[...document.querySelectorAll("h2, h3")]
    .filter(one => one.getBoundingClientRect().bottom + scrollY < {height})
    .map(one => one.textContent.trim()).join("\\n")"""


def main(arguments: Sequence[str]) -> int:
    parser = harness.parser("figures.report_picture", __doc__, "a.html --output report.png")
    parser.add_argument("page", type=Path, nargs="?", metavar="PAGE", help="written by hvprof")
    parser.add_argument("--output", type=output_file, metavar="F", help="the picture, a PNG")
    options = parser.parse_args(arguments)
    program = find()
    if program is None:
        raise BenchmarkError("chromium is not on PATH: install it")
    if options.page is None or not options.page.is_file() or options.output is None:
        raise BenchmarkError(f"no page {options.page}: give PAGE and --output")
    _draw(program, options.page, options.output)
    return 0


def _draw(program: str, page: Path, output: Path) -> None:
    both = Image.new("RGB", (2 * _WIDTH, _HEIGHT))
    width, height = int(_ZOOM * _WIDTH), int(_ZOOM * _HEIGHT)
    words = PngInfo()
    with tempfile.TemporaryDirectory() as folder, browser(program, Path(folder)) as tab:
        tab.open(page)
        for index, dark in enumerate((False, True)):
            shot = Path(folder) / f"{index}.png"
            tab.show(width, dark=dark)
            tab.screenshot(shot, (index + 1) * height)
            part = Image.open(shot).crop((0, index * height, width, (index + 1) * height))
            half = part.resize((_WIDTH, _HEIGHT), Image.Resampling.LANCZOS)
            both.paste(half, (index * _WIDTH, 0))
        words.add_text("Description", tab.value(_HEADINGS.format(height=2 * height)))
    both.quantize(256, Image.Quantize.MAXCOVERAGE).save(output, optimize=True, pnginfo=words)


if __name__ == "__main__":
    harness.run(main, "figures.report_picture")
