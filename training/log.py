"""A CSV log that a resumed run goes on with."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.files import atomic_path


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
                    f"{path} is not a log of this program ({error}): move it away"
                ) from error
        with atomic_path(path) as temporary, temporary.open("w", newline="") as stream:
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
