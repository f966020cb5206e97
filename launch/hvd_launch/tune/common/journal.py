"""Every raw measurement as a line of JSON, from which a resumed run starts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from hvd_ext.errors import HvdExtError, UsageError

Entry = dict[str, Any]
_NUMBER = (int, float)
_ATTEMPT, _MAYBE = ("candidate", "round", "attempt"), (str, int, NoneType)
# Keys that a resumed run relies on, by the kind of entry.
_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "facts": {"phase": str, "library": str, "size": int, "ranks_per_node": list},
    "selection": {"part": str},
    "time": {"candidate": str, "round": int, "attempt": int, "message_bytes": int, "us": list},
    "job": {"phase": str, "ok": bool, "wall_s": _NUMBER, **dict.fromkeys(_ATTEMPT, _MAYBE)},
    "start": {},
    "reading": {},
    "run": {"rate": (*_NUMBER, NoneType), "by_wall_time": bool},
}


class Journal:
    """A file of entries that only grows. Its first line names the measurement.

    Attributes:
        entries: its entries, without the first line.
    """

    def __init__(self, path: Path, subject: Mapping[str, Any], fresh: bool = False) -> None:
        """Continue the file at `path`, or begin it.

        Args:
            path: the file.
            subject: description of the measurement, in JSON's types.
            fresh: move earlier measurements aside, and start over.

        Raises:
            UsageError: it holds measurements of something else, or is not a journal, or cannot be
                written.
        """
        self.path = path
        self.entries: list[Entry] = []
        try:
            if fresh and path.exists():
                path.rename(_free_name(path))
            if path.exists():
                self._read(dict(subject))
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
                self._write({"subject": dict(subject)})
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}: name another folder with -o") from error

    def append(self, entry: Entry) -> None:
        """Add an entry; it is on disk when this returns.

        Raises:
            HvdExtError: it cannot be written.
        """
        try:
            self._write(entry)
        except OSError as error:
            raise HvdExtError(f"{self.path}: {error.strerror}") from error
        self.entries.append(entry)

    def find(self, **wanted: Any) -> list[Entry]:
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
            found = dict(lines[0]["subject"]) if lines else subject
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"{self.path}: holds no measurements; move it away") from error
        differing = sorted(
            name for name in {*found, *subject} if found.get(name) != subject.get(name)
        )
        if differing:
            name = differing[0]
            raise UsageError(
                f"{self.path}: was measured with {name} {found.get(name)!r}, not "
                f"{subject.get(name)!r}: name another folder with -o, or start over with --fresh"
            )
        for number, entry in enumerate(lines[1:], 2):
            if not _sound(entry):
                raise UsageError(f"{self.path}, line {number}: not a measurement; move it away")
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


def _sound(entry: object) -> bool:
    """Whether an entry has all keys of its kind, and its times and rate are above 0."""
    if not isinstance(entry, dict):
        return False
    kind = str(entry.get("kind"))
    fields = _FIELDS.get(kind)
    if fields is None or not all(isinstance(entry.get(n), types) for n, types in fields.items()):
        return False
    rates = [] if entry.get("rate") is None else [entry["rate"]]
    numbers = entry["us"] or [0] if kind == "time" else rates
    return all(isinstance(number, _NUMBER) and 0 < number < math.inf for number in numbers)


def _free_name(path: Path) -> Path:
    number = 1
    while (name := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return name
