"""Every raw measurement, a line of JSON each, as it comes: what a resumed run starts from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvd_ext.errors import UsageError

Entry = dict[str, Any]


class Journal:
    """A file of entries that only grows. Its first line says what is measured.

    Attributes:
        path: the file.
        entries: what it holds, without the first line.
    """

    def __init__(self, path: Path, subject: Mapping[str, Any], fresh: bool = False) -> None:
        """Go on with the file at `path`, or begin it.

        Args:
            path: the file.
            subject: what is measured: JSON's types.
            fresh: move what is there aside, and begin anew.

        Raises:
            UsageError: it holds measurements of something else, or is no such file.
        """
        self.path = path
        self.entries: list[Entry] = []
        if fresh and path.exists():
            path.rename(_free_name(path))
        if path.exists():
            self._read(dict(subject))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            self._write({"subject": dict(subject)})

    def append(self, entry: Entry) -> None:
        """Add an entry; it is on disk when this returns."""
        self._write(entry)
        self.entries.append(entry)

    def find(self, **wanted: Any) -> list[Entry]:
        """The entries that have these values."""
        return [
            entry
            for entry in self.entries
            if all(entry.get(name) == value for name, value in wanted.items())
        ]

    def _read(self, subject: Entry) -> None:
        data = self.path.read_bytes()
        # A run that was killed may have written half a line.
        whole = data[: data.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            found = lines[0]["subject"] if lines else subject
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self.path}: holds no measurements: move it away") from error
        differing = sorted(
            name for name in {*found, *subject} if found.get(name) != subject.get(name)
        )
        if differing:
            name = differing[0]
            raise UsageError(
                f"{self.path}: was measured with {name} {found.get(name)!r}, not "
                f"{subject.get(name)!r}: name another folder with -o, or begin anew with --fresh"
            )
        if len(whole) != len(data):
            os.truncate(self.path, len(whole))
        self.entries = lines[1:]
        if not lines:
            self._write({"subject": subject})

    def _write(self, entry: Entry) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _free_name(path: Path) -> Path:
    number = 1
    while (name := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return name
