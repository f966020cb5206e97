"""The files that are written for the user."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hvd_ext.errors import UsageError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A file of text that appears whole or not at all.

    A link stays one, and what is no file (a pipe, a device) is written to as it is.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        in_place = path.exists() and not path.is_file()
        target = path if in_place else Path(os.path.realpath(path))
        partial = path if in_place else target.with_name(f".{target.name}.partial")
        # A name from the command line may be no text.
        with partial.open("w", encoding="utf-8", errors="replace") as file:
            yield file
        if not in_place:
            partial.replace(target)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
