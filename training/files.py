"""Files that are either whole or not there."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hvd_ext.errors import HvdExtError, UsageError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `path` if the block succeeds.

    Raises:
        HvdExtError: it cannot be written; `path` is as it was before.
    """
    # One name, so that a process that is killed here leaves no more than one.
    temporary = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise HvdExtError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON."""
    with whole(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


def make_folder(path: Path) -> None:
    """Make a folder and its parents.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {path}: {error.strerror}") from error


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint: tensors and plain values, and `kind`, whose model it is of.

    Raises:
        HvdExtError: it cannot be written; an older checkpoint at `path` is kept.
    """
    with whole(path) as temporary:
        try:
            with temporary.open("wb") as stream:
                torch.save(state, stream)
                stream.flush()
                os.fsync(stream.fileno())
        except RuntimeError as error:
            # torch's writer hides a full disk behind a RuntimeError.
            raise OSError(str(error).splitlines()[0]) from error


def load_checkpoint(path: Path, kind: str, needs: Sequence[str] = ()) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, refusing anything that could run code.

    Args:
        path: the file.
        kind: whose model it has to be of.
        needs: what it has to hold.

    Raises:
        UsageError: there is no such file, it is no checkpoint, it is damaged or cut off,
            it lacks something, or it is of another model than `kind`.
    """
    if not path.is_file():
        raise UsageError(f"no checkpoint at {path}: pass a file written by {kind}.train")
    try:
        # torch reads what is there, and does not look at the checksums.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged:
            raise ValueError(damaged)
        state = torch.load(path, map_location="cpu", weights_only=True)
    # Bytes that are no pickle can fail in any way.
    except Exception as error:
        raise UsageError(
            f"{path} is no checkpoint, or is damaged or cut off: pass a file written by "
            f"{kind}.train"
        ) from error
    found = state.get("kind") if isinstance(state, dict) else None
    if found != kind:
        what = f"a checkpoint of {found!r}" if found else f"no checkpoint of {kind}.train"
        raise UsageError(f"{path} is {what}, not of {kind!r}: pass a file written by {kind}.train")
    if lacking := [name for name in needs if name not in state]:
        raise UsageError(f"{path} lacks {', '.join(lacking)}: pass a file written by {kind}.train")
    return state
