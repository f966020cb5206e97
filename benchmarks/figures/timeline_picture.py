"""A picture of a recording's profiled steps, light or dark as the reader's screen.

For the docs: the chart of hvprof's page in its colors, and beneath it what was run, the machine and
the date of the recording. The machine is taken to be this one.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from textwrap import wrap

import hvprof
from benchmarks import harness
from benchmarks.harness import BenchmarkError
from hvd_ext.cli import output_file
from hvd_ext.system.files import write_text
from hvprof.analysis.analysis import Analysis
from hvprof.reporters import page
from hvprof.reporters.page.sections import timeline
from hvprof.reporters.page.sections.base import Page
from testbed.timing import machine

_MARGIN, _LINE, _CHARACTERS = 10, 14, 88
# The page's colors are variables: of the light scheme, then of the dark one.
_COLORS = re.compile(r"^:root \{$.*?^@media.*?^\}$", re.MULTILINE | re.DOTALL)
_STYLE = """svg { background: var(--card); }
text { font: 11px system-ui, sans-serif; fill: var(--ink); }
.muted, .small { fill: var(--muted); } .small { font-size: 8px; }
.grid { stroke: var(--line); } .axis { stroke: var(--muted); }
"""


def main(arguments: Sequence[str]) -> int:
    parser = harness.parser("figures.timeline_picture", __doc__, "runs/a --output F.svg")
    parser.add_argument("directory", type=Path, nargs="?", metavar="DIR", help="a recording")
    parser.add_argument("--output", type=output_file, metavar="F", help="the picture, an SVG")
    options = parser.parse_args(arguments)
    if options.directory is None or options.output is None:
        raise BenchmarkError("nothing to draw: give DIR and --output F")
    write_text(options.output, picture(hvprof.load(options.directory)))
    return 0


def picture(recording: hvprof.Recording) -> str:
    """The profiled steps of a recording as an SVG.

    Raises:
        BenchmarkError: there are none.
    """
    figures = timeline.section(Page(Analysis(recording))).figures
    if not figures:
        raise BenchmarkError(f"{recording.directory} has no timeline: record with --gpu STEPS")
    (chart,) = figures
    facts = machine()
    date = time.strftime("%Y-%m-%d", time.gmtime(recording.start_unix_s))
    words = [chart.title, *wrap(shlex.join(recording.command), _CHARACTERS)]
    words += [f"{facts['cpu']}, {facts['cores']} cores, {date}"]
    opening, _, inner = chart.svg.removesuffix("</svg>").partition(">")
    width, height = map(float, opening.split('"')[1].split()[2:])
    below = "".join(
        f'<text class="small" x="0" y="{height + _LINE * number:g}">{escape(line)}</text>\n'
        for number, line in enumerate(words, start=1)
    )
    height += _LINE * len(words)
    box = f"{-_MARGIN} {-_MARGIN} {width + 2 * _MARGIN:g} {height + 2 * _MARGIN:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}">\n'
        f"<style>\n{_colors()}{_STYLE}</style>\n{inner}\n{below}</svg>\n"
    )


def _colors() -> str:
    """The page's colors, as variables, and its classes of filled marks."""
    template = files(page).joinpath("templates/page.html.j2").read_text(encoding="utf-8")
    found = _COLORS.search(template)
    assert found, "the page has no :root"
    fills = (f".f{color} {{ fill: var(--c{color}); }}" for color in timeline.COLORS.values())
    return "\n".join((found[0], *fills, ""))


if __name__ == "__main__":
    harness.run(main, "figures.timeline_picture")
