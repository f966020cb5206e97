"""Files that no other user of a node can have created or can change."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from hvd_ext.errors import HvdExtError

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


def private_folder(parent: Path) -> Path:
    """Return the folder within `parent` that only this user can access."""
    return parent / f"hvd_ext-{os.geteuid()}"


def open_private_folder(path: Path) -> int:
    """Make a folder, unless it is there, and open it; returns its descriptor.

    Raises:
        HvdExtError: it is a link, belongs to another user, or is open to others.
        OSError: it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
    except NotADirectoryError as error:
        raise _not_trusted(path, "it is a link or a file, not a folder") from error
    found = os.fstat(folder)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(folder)
        owner, mode = found.st_uid, stat.S_IMODE(found.st_mode)
        raise _not_trusted(path, f"it belongs to user {owner}, with mode {mode:o}, not 700")
    return folder


def open_private_file(folder: int, path: Path) -> int:
    """Make a file in a private folder, unless it is there, and open it to read and write.

    Args:
        folder: its folder's descriptor.
        path: the file's path; only its name counts.

    Returns:
        Its descriptor.

    Raises:
        HvdExtError: it is a link, is not a file, belongs to another user, or has a second name
            elsewhere.
        OSError: it cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | _FLAGS
    try:
        file = os.open(path.name, flags, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise _not_trusted(path, "it is no regular file") from error
        raise
    found = os.fstat(file)
    problem = ""
    if not stat.S_ISREG(found.st_mode):
        problem = "it is no regular file"
    elif found.st_uid != os.geteuid():
        problem = f"it belongs to user {found.st_uid}"
    elif found.st_nlink != 1:
        problem = f"it has {found.st_nlink} names"
    if problem:
        os.close(file)
        raise _not_trusted(path, problem)
    return file


def _not_trusted(path: Path, why: str) -> HvdExtError:
    return HvdExtError(
        f"{path} cannot be trusted: {why}: remove it if it is yours, or name another folder"
    )
