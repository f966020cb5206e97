"""How far it is: a bar on a terminal, plain lines elsewhere, and a CSV log."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from hvd_ext.errors import HvdExtError, UsageError
from training.files import whole

Advance = Callable[[int, str], None]


@contextmanager
def progress(title: str, total: int, *, shown: bool = True) -> Iterator[Advance]:
    """Show progress on standard error.

    Yields:
        `advance(completed, note)`. A terminal shows a bar with the last note; where
        there is none, each note that is not empty becomes a line.
    """
    console = Console(stderr=True)
    if not shown:
        yield lambda completed, note: None
        return
    if not console.is_terminal:

        def line(completed: int, note: str) -> None:
            if note:
                console.print(f"{title} {completed}/{total}  {note}", soft_wrap=True)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bars:
        task = bars.add_task(title, total=total, note="")

        def bar(completed: int, note: str) -> None:
            bars.update(task, completed=completed)
            if note:
                bars.update(task, note=note)

        yield bar


class CsvLog:
    """A CSV file that grows by a row at a time; its first column counts the steps."""

    def __init__(self, path: Path, columns: Sequence[str], *, resumed_at: int = 0) -> None:
        """Start a log, or go on with one.

        Args:
            path: the file.
            columns: names of the columns; the first is the step.
            resumed_at: rows of the file up to this step are kept; later ones are
                of steps that will be taken again.

        Raises:
            HvdExtError: the file is something else, or cannot be written.
        """
        # A row that is cut short is of a process that was killed.
        kept: list[list[str]] = []
        if resumed_at and path.is_file():
            try:
                with path.open(newline="") as stream:
                    rows = [row for row in list(csv.reader(stream))[1:] if len(row) == len(columns)]
                kept = [row for row in rows if int(row[0]) <= resumed_at]
            except (ValueError, csv.Error) as error:
                raise UsageError(
                    f"{path} is no log of this program ({error}): move it away"
                ) from error
        with whole(path) as temporary, temporary.open("w", newline="") as stream:
            csv.writer(stream).writerows([columns, *kept])
        self._path = path

    def write(self, *values: int | float) -> None:
        """Append one row; floats keep all their bits.

        Raises:
            HvdExtError: the file cannot be written.
        """
        try:
            with self._path.open("a", newline="") as stream:
                csv.writer(stream).writerow([repr(value) for value in values])
        except OSError as error:
            raise HvdExtError(f"cannot write {self._path}: {error.strerror}") from error
