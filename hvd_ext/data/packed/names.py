"""The files that `unpack` writes, each a different one within a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from hvd_ext.data.packed.layout import Field
from hvd_ext.errors import UsageError

_MOST_FOLDERS = 100
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def require_unpackable(source: str, fields: Sequence[Field], names: Sequence[str]) -> None:
    """Check that a packed file of these fields and names can be unpacked.

    Args:
        source: its name in errors.
        fields: fields of each sample.
        names: names of the samples; may be empty.

    Raises:
        UsageError: it cannot be unpacked.
    """
    nowhere = Path(os.devnull) / "folder"  # the folder does not exist, so no link is followed
    file_paths(source, fields, names, nowhere, "rename it")


def file_paths(
    source: object, fields: Sequence[Field], names: Sequence[str], folder: Path, then: str
) -> list[Path]:
    """Return the paths of arrays, or of samples, in a folder; links are followed.

    Args:
        source: name of the packed file in errors.
        fields: fields of each sample.
        names: names of the samples.
        folder: folder for the files.
        then: the end of an error.

    Raises:
        UsageError: a name leads out of the folder, occurs twice, or cannot be shown in a line.
    """
    if fields[-1].kind == "array":
        names = [f"{field.name}.npy" for field in fields]
    ending = ".png" if fields[-1].kind == "pixels" else None
    base = os.path.realpath(folder)
    paths: dict[str, Path] = {}
    for name in names:
        try:
            path = folder / name
            path = path.with_suffix(ending) if ending else path
            final = os.path.realpath(path)
        except ValueError:  # it contains characters that no path can have
            path, final = folder, base
        problem = ""
        if final == base or os.path.commonpath([base, final]) != base:
            problem = "is no file within the folder"
        elif final in paths:
            problem = "is where another file of it goes"
        elif _CONTROLS.search(name):
            problem = "holds control characters"
        elif name.count("/") > _MOST_FOLDERS:
            problem = f"lies in more than {_MOST_FOLDERS} folders"
        if problem:
            raise UsageError(f"{source} names {name!r:.80}, which {problem}: {then}")
        paths[final] = path
    return list(paths.values())
