"""A picture of what a command prints on a terminal, light or dark as the reader's screen.

For the docs: a recording of two ranks, and what hvprof shows of it. Beneath the output stand what
was run, the machine and the date.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from benchmarks import harness
from benchmarks.harness import BenchmarkError
from hvd_ext.cli import output_file
from hvd_ext.system.files import write_text
from testbed.timing import machine

_COLUMNS = 80
# Fonts of the reader's machine: rich's own template loads one from a network.
_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
_GROUP = """<g class="{unique_id}">
<style>
{styles}
.{unique_id}-matrix {{ font-family: FONTS; font-size: {char_height}px; white-space: pre; }}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</g>""".replace("FONTS", _FONTS)
_PICTURE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.light > rect {{ stroke: #bbb; }}
.dark {{ display: none; }}
@media (prefers-color-scheme: dark) {{ .light {{ display: none; }} .dark {{ display: inline; }} }}
</style>
GROUP
DARK
</svg>
""".replace("GROUP", _GROUP)


def main(arguments: Sequence[str]) -> int:
    parser = harness.parser(
        "figures.terminal_picture", __doc__, "--output F.svg --ran '...' -- hvprof report runs/a"
    )
    parser.add_argument("--output", type=output_file, metavar="F", help="the picture, an SVG")
    parser.add_argument("--ran", default="", metavar="TEXT", help="what was run before")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="whose output is drawn")
    options = parser.parse_args(arguments)
    if options.output is None or not options.command:
        raise BenchmarkError("nothing to draw: give --output F -- COMMAND")
    write_text(options.output, picture(options.command, _printed(options.command), options.ran))
    return 0


def picture(command: Sequence[str], printed: str, ran: str) -> str:
    """The output of a command as an SVG.

    Args:
        command: stands above its output.
        printed: the output, with the escape sequences of its colors.
        ran: what was run before; stands below, with the machine and the date.
    """
    facts = machine()
    below = ". ".join(filter(None, (ran, f"{facts['cpu']}, {facts['cores']} cores")))
    lines = [Text(f"$ {shlex.join(command)}", style="bold"), Text.from_ansi(printed.rstrip("\n"))]
    lines += [Text(""), Text(f"{below}, {facts['date']}", style="dim")]

    def drawn(theme: TerminalTheme, name: str, template: str) -> str:
        console = Console(record=True, width=_COLUMNS, file=io.StringIO(), color_system="truecolor")
        for line in lines:
            console.print(line)
        return console.export_svg(title="", theme=theme, code_format=template, unique_id=name)

    light = drawn(DEFAULT_TERMINAL_THEME, "light", _PICTURE)
    return light.replace("DARK", drawn(SVG_EXPORT_THEME, "dark", _GROUP), 1)


def _printed(command: Sequence[str]) -> str:
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(_COLUMNS)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    try:
        done = subprocess.run(
            command, env=os.environ | terminal | {"PATH": path}, stdout=subprocess.PIPE, text=True
        )
    except OSError as error:
        raise BenchmarkError(f"{command[0]}: {error.strerror}") from error
    # hvprof hang and check end with a code that says what they found.
    if done.returncode and not done.stdout:
        raise BenchmarkError(f"{shlex.join(command)} ended with exit code {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    harness.run(main, "figures.terminal_picture")
