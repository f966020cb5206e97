"""Checkpoints: whole or refused, and resumed with the flags that they were written with."""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hvd_ext.errors import UsageError
from hvd_ext.system.files import atomic_path

# The number of ranks may change, and the batch of each with it: see `require_same_flags`.
_OF_THE_BATCH = ("batch_size", "batches_per_allreduce")


def shaping_flags(args: argparse.Namespace) -> dict[str, Any]:
    """The flags that shape training, by name: all except those that `may_change` was called for."""
    free = {"may_change", *args.may_change}
    return {name: value for name, value in vars(args).items() if name not in free}


def require_same_flags(
    path: Path, checkpoint: dict[str, Any], args: argparse.Namespace, global_batch: int
) -> None:
    """Check that a run has the flags of its checkpoint.

    On another number of ranks another batch of each is accepted if that of all ranks is the
    same.

    Raises:
        UsageError: a flag differs; the message has the old and the new value of each.
    """
    old, new = checkpoint["flags"], shaping_flags(args)
    changed = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    if checkpoint["global_batch"] == global_batch:
        changed = [name for name in changed if name not in _OF_THE_BATCH]
    if changed:
        told = "; ".join(
            f"--{name.replace('_', '-')} was {_given(old.get(name))}, now {_given(new.get(name))}"
            for name in changed
        )
        raise UsageError(f"cannot resume {path}: {told}: resume with the flags it was started with")


def _given(value: Any) -> str:
    return (
        "not given" if value is None or value is False else "given" if value is True else str(value)
    )


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint: tensors and plain values, and `kind`, the kind of its model.

    Raises:
        HvdExtError: it cannot be written; an older checkpoint at `path` is kept.
    """
    with atomic_path(path) as temporary, _Stream(temporary, "w") as stream:
        try:
            torch.save(_of_one_text(state), stream)
        except RuntimeError as error:
            # torch's writer raises another error when a write has failed.
            raise stream.error or OSError(str(error).splitlines()[0]) from error
        os.fsync(stream.fileno())


class _Stream(io.FileIO):
    """A file that keeps the error of a write.

    Attributes:
        error: error of the first write that failed.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        count = len(left)
        try:
            while left:
                left = left[super().write(left) or 0 :]
        except OSError as error:
            self.error = self.error or error
            raise
        return count


def _of_one_text(value: Any) -> Any:
    """Return an equal value that has one object for equal texts.

    pickle refers back to an object that it has written, but writes an equal one again. A resumed
    run has read some of its texts, so equal checkpoints would differ in their bytes.
    """
    if type(value) is str:
        return sys.intern(value)
    if type(value) is dict:
        return {_of_one_text(key): _of_one_text(held) for key, held in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_of_one_text, value))
    return value


def keep_last(path: Path, step: int, keep: int) -> None:
    """Also keep the checkpoint at `path` as NAME-STEP, and only the last `keep` of these.

    Raises:
        HvdExtError: it cannot be kept.
    """
    if not keep:
        return
    name = path.with_name(f"{path.stem}-{step}{path.suffix}")
    with atomic_path(name) as temporary:
        temporary.unlink(missing_ok=True)
        try:
            os.link(path, temporary)  # the next checkpoint replaces the name, not the file
        except OSError:
            shutil.copyfile(path, temporary)
    pattern = re.compile(rf"{re.escape(path.stem)}-(\d+){re.escape(path.suffix)}")
    steps = {
        int(found[1]): other
        for other in path.parent.iterdir()
        if (found := pattern.fullmatch(other.name))
    }
    for old in sorted(steps)[:-keep]:
        steps[old].unlink(missing_ok=True)


def read_file(path: Path, kind: str) -> dict[str, Any]:
    """The contents of a file of torch's, on the CPU, refusing anything that could run code.

    Args:
        path: the file; the format that torch had before it wrote zip files is read, too.
        kind: whose weights are wanted, for the message.

    Raises:
        UsageError: the file does not exist, is damaged or cut off, or holds no dict.
    """
    if not path.is_file():
        raise UsageError(f"no checkpoint at {path}: pass a file written by {kind}.train")
    try:
        # torch reads the content without verifying the checksums.
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            if damaged:
                raise ValueError(damaged)
        state = torch.load(path, map_location="cpu", weights_only=True)
    # Reading a file that is not a pickle can raise any error.
    except Exception as error:
        raise UsageError(
            f"{path} is not a checkpoint, or is damaged or cut off: pass a file written by "
            f"{kind}.train"
        ) from error
    if not isinstance(state, Mapping):
        raise UsageError(f"{path} is not of {kind}.train: pass a file written by {kind}.train")
    return dict(state)


def load_checkpoint(path: Path, kind: str, needs: Sequence[str] = ()) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, refusing anything that could run code.

    Args:
        path: the file.
        kind: the kind of model that it has to be of.
        needs: names that it has to hold.

    Raises:
        UsageError: the file does not exist, is not a checkpoint, is damaged or cut off,
            lacks something, or is of another model than `kind`.
    """
    state = read_file(path, kind)
    found = state.get("kind")
    if found != kind:
        what = f"a checkpoint of {found!r}, not of {kind!r}" if found else f"not of {kind}.train"
        raise UsageError(f"{path} is {what}: pass a file written by {kind}.train")
    if lacking := [name for name in needs if name not in state]:
        raise UsageError(f"{path} lacks {', '.join(lacking)}: pass a file written by {kind}.train")
    return state
