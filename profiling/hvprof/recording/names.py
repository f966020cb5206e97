"""Names of recordings for people: the ends of their paths."""

from __future__ import annotations

from pathlib import Path

from hvprof.printable import printable


def name_of(path: Path) -> str:
    """The last part of a path; with the part before it where that is only a number.

    `runs/resnet50/1` is "resnet50/1".
    """
    parts = _parts(path)
    count = next((n for n in range(1, len(parts)) if not parts[-n].isdigit()), len(parts))
    return printable("/".join(parts[-count:]))


def names_of(first: Path, second: Path) -> tuple[str, str]:
    """Names of two paths that differ, where the paths do."""
    ours, theirs = _parts(first), _parts(second)
    names = (name_of(first), name_of(second))
    for count in range(1, min(len(ours), len(theirs)) + 1):
        if names[0] != names[1]:
            break
        names = (printable("/".join(ours[-count:])), printable("/".join(theirs[-count:])))
    return names


def _parts(path: Path) -> list[str]:
    path = path.resolve()
    return [*path.parts[1:]] or [str(path)]
