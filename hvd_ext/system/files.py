"""Files that appear whole or not at all, and paths that are checked before the work begins."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from hvd_ext.errors import HvdExtError, UsageError


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` if the block succeeds.

    A symbolic link stays one; a file that is not regular (a pipe, a device) is written in place.

    Raises:
        HvdExtError: it cannot be written; `path` is then unchanged.
    """
    in_place = path.exists() and not path.is_file()
    target = path if in_place else Path(os.path.realpath(path))
    temporary, lock = path, -1
    try:
        if not in_place:
            temporary, lock = _draft(target)
        yield temporary
        if not in_place:
            temporary.replace(target)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HvdExtError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if lock >= 0:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            os.close(lock)


def _draft(target: Path) -> tuple[Path, int]:
    """Make a new file next to `target`, and a descriptor that locks it.

    Its suffix is that of `target`, because some writers choose the format by it.
    """
    _remove_abandoned(target.parent)
    while True:
        draft = target.with_name(f".{target.stem[:100]}.{secrets.token_hex(8)}.part{target.suffix}")
        # With O_EXCL, an existing file or link is not opened.
        lock = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return draft, lock
        os.close(lock)  # another process removed it as abandoned before it was locked


@functools.cache  # once for each folder, because listing it for each file takes long
def _remove_abandoned(folder: Path) -> None:
    """Remove drafts that killed processes left in a folder: those that no process locks."""
    for old in folder.glob(f".*.{'[0-9a-f]' * 16}.part*"):
        with contextlib.suppress(OSError):
            # This follows no link, and waits for no writer of a pipe.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            lock = os.open(old, flags)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                old.unlink()
            finally:
                os.close(lock)


def write_text(path: Path, text: str) -> None:
    """Write a file of text, whole or not at all.

    Raises:
        HvdExtError: it cannot be written.
    """
    with atomic_path(path) as temporary:
        # A name from a command line may contain bytes that are not text.
        temporary.write_text(text, encoding="utf-8", errors="replace")


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON, whole or not at all.

    Raises:
        HvdExtError: it cannot be written.
    """
    write_text(path, json.dumps(value, indent=2) + "\n")


def make_folder(path: Path) -> None:
    """Make a folder and its parents.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {path}: {error.strerror}") from error


def check_writable(path: Path) -> Path:
    """Return `path` if a file can be written there; to be called before long work.

    Raises:
        UsageError: its folder does not exist or cannot be written to, or it is a folder.
    """
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: folder {folder} does not exist; make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"cannot write {path}: permission denied; name another folder")
    return path
