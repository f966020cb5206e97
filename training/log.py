"""A log that a resumed run continues: a CSV file, and TensorBoard on request."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.system.files import atomic_path, make_folder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class CsvLog:
    """A CSV file that grows row by row; its first column counts the steps."""

    def __init__(
        self,
        path: Path,
        columns: Sequence[str],
        *,
        resumed_at: int = 0,
        board: SummaryWriter | None = None,
    ) -> None:
        """Start a log, or continue one.

        Args:
            path: the file.
            columns: names of the columns; the first is the step.
            resumed_at: rows of the file up to this step are kept; later rows belong to steps that
                will be taken again.
            board: gets the rows too, as PATH's stem / column.

        Raises:
            HvdExtError: the file is something else, or cannot be written.
        """
        # A row that is cut short comes from a process that was killed.
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
        self._path, self._columns, self._board = path, columns, board

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
        if self._board:
            for name, value in zip(self._columns[1:], values[1:], strict=True):
                self._board.add_scalar(f"{self._path.stem}/{name}", value, int(values[0]))
            self._board.flush()


def tensorboard(folder: Path | None, resumed_at: int) -> SummaryWriter | None:
    """Write the events of --tensorboard.

    Args:
        folder: folder for the events; None: none are requested.
        resumed_at: step from which TensorBoard drops events of a broken run.

    Raises:
        UsageError: TensorBoard is not installed, or the folder cannot be made.
    """
    if folder is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            "--tensorboard: TensorBoard is not installed: pip install tensorboard"
        ) from error
    make_folder(folder)
    return SummaryWriter(str(folder), purge_step=resumed_at + 1)
