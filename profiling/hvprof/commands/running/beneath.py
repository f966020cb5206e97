"""Readings of a job below its own output, while hvprof record waits for its end."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.text import Text

from hvd_ext.errors import HvdExtError
from hvprof.commands.running.following import follow
from hvprof.commands.shared import console
from hvprof.reporters.watch import Watched, render

_EVERY_S, _LONGER_THAN_S = 2.0, 5.0
_AT_ONCE = 65536
# The output of a process that outlives the command is not waited for.
_LAST_WORDS_S = 1.0


@contextlib.contextmanager
def shown_beneath(directory: Path, *, asked: bool) -> Iterator[int | None]:
    """Show readings of a recorded job below its output during the block.

    Args:
        directory: folder of the recording.
        asked: whether to show them; if standard output is not a terminal, a line says what to do
            instead.

    Yields:
        The descriptor of a terminal for the command's output; None if it uses hvprof's.
    """
    if asked and not sys.stdout.isatty():
        print(
            f"hvprof: --watch: standard output is not a terminal: run hvprof watch {directory}",
            file=sys.stderr,
        )
    if not asked or not sys.stdout.isatty():
        yield None
        return
    ours, commands = os.openpty()
    size = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
    fcntl.ioctl(commands, termios.TIOCSWINSZ, size)
    ended = threading.Event()
    with Live(console=console(), auto_refresh=False, redirect_stdout=False) as screen:
        panel = _Panel(screen)
        threads = [
            threading.Thread(target=_copy, args=(ours, panel), daemon=True),
            threading.Thread(target=_follow, args=(directory, panel, ended), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield commands
        finally:
            ended.set()
            os.close(commands)  # so that `_copy` ends once all has been read
            for thread in threads:
                thread.join(_LAST_WORDS_S)
    if not threads[0].is_alive():
        os.close(ours)


class _Panel:
    """The lines at the end of the screen, above which output scrolls."""

    def __init__(self, screen: Live) -> None:
        self._screen = screen
        self._lock = threading.Lock()
        self._unended, self._reading = "", ""

    def write(self, text: str) -> None:
        """Show more output; a line that has not ended, such as a progress bar's, is renewed."""
        with self._lock:
            *lines, self._unended = (self._unended + text.replace("\r\n", "\n")).split("\n")
            for line in lines:
                self._screen.console.print(_visible(line), soft_wrap=True)
            self._refresh()

    def show(self, watched: Watched) -> None:
        """Show a reading."""
        with self._lock:
            self._reading = "\n" + render(watched)
            self._refresh()

    def _refresh(self) -> None:
        parts = [_visible(self._unended)] if self._unended else []
        self._screen.update(Group(*parts, Text(self._reading)), refresh=True)


def _visible(line: str) -> Text:
    """Return a line as a terminal shows it, without text that a carriage return hides."""
    return Text.from_ansi(line.rstrip("\r").rpartition("\r")[2])


def _copy(source: int, panel: _Panel) -> None:
    """Show output of a terminal until no process has it open, which is an error on Linux."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with contextlib.suppress(OSError):
        while read := os.read(source, _AT_ONCE):
            panel.write(decoder.decode(read))


def _follow(directory: Path, panel: _Panel, ended: threading.Event) -> None:
    # The wait comes first: the command is forked meanwhile, and no lock is held.
    ended.wait(_EVERY_S)
    with contextlib.suppress(HvdExtError):  # the job has started nothing that can be read
        follow(directory, _EVERY_S, _LONGER_THAN_S, panel.show, stopped=ended)
