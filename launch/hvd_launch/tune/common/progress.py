"""Shows how far a long measurement is: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Call it when a job begins."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say what begins, and how many jobs of how many are done."""


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """Show on standard error what `advance(what, done, total)` is told."""
    if not sys.stderr.isatty():
        yield _lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(title),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)

        def advance(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield advance


def _lines(title: str) -> Advance:
    start_s = time.monotonic()

    def advance(what: str, done: int, total: int) -> None:
        elapsed_s = time.monotonic() - start_s
        print(f"{title} {done}/{total} [{elapsed_s:.0f} s] {what}", file=sys.stderr, flush=True)

    return advance
