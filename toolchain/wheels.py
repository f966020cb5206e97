"""Wheels that are built here once and kept in the user's cache. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from workshop import ROOT, Workshop

_NOT_SOURCES = (".git", "build", "dist", "*.egg-info")


@contextlib.contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock file at `path`; prints `waiting` if another process has it.

    Where the file system has no locks it prints a warning.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"make env: {waiting}", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            # NFS may be mounted without them.
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise
            print(f"make env: no locks where {path} is: start one `make env` at a time", flush=True)
        yield


def cache_folder() -> Path:
    """The user's cache, or the checkout's build folder where that cannot be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_ext"
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
    return ROOT / "build" / "cache"


def wheel_folder(mpi: str, torch: str, source: str) -> Path:
    """Where wheels built for this Python, MPI and torch from this source are kept."""
    key = (
        f"cp{sys.version_info.major}{sys.version_info.minor}",
        sysconfig.get_platform(),
        "".join(platform.libc_ver()),
        re.sub("==", "-", mpi),
        f"torch-{torch}",
        source,
    )
    return cache_folder() / "wheels" / "_".join(key)


def leftovers(checkout: Path) -> set[str]:
    """The names in a checkout that are not sources: its history, and what builds left in it."""
    return {path.name for pattern in _NOT_SOURCES for path in checkout.glob(pattern)}


def clean_copy(checkout: Path, folder: Path) -> Path:
    """Copy the sources of a checkout: the settings of an earlier build in it break the next one.

    Args:
        checkout: a folder that stays as it is.
        folder: where to copy it to.
    """
    names = leftovers(checkout)
    shutil.copytree(
        checkout,
        folder,
        symlinks=True,
        ignore=lambda place, _: names if Path(place) == checkout else (),
    )
    return folder


def built_wheel(
    shop: Workshop, name: str, source: str, folder: Path, *options: str, **variables: str
) -> Path:
    """The wheel of a package in the cache, built if it is not there.

    It appears in the cache complete or not at all.

    Args:
        shop: the environment to build in.
        name: the package.
        source: a pin such as "horovod==0.28.1", or the path of its source.
        folder: where its wheel is kept.
        options: more options for `pip wheel`.
        variables: environment variables for the build.
    """
    with locked(folder / "lock", f"waiting for another build of {name}"):
        for wheel in folder.glob(f"{name}-*.whl"):
            shop.say(f"{name} from {wheel}")
            return wheel
        for abandoned in folder.glob("building-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        shop.say(f"build {source} (some minutes; the wheel is kept in {folder})")
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix="building-") as building,
            # Horovod reads its path as a regular expression: no plus of "torch-2.13.0+cpu" here.
            tempfile.TemporaryDirectory(prefix="hvd-ext-") as copy,
        ):
            if Path(source).is_dir():
                source = str(clean_copy(Path(source), Path(copy) / "source"))
            # pip's own cache knows the release, not what it was built against.
            fresh = ("--no-deps", "--no-cache-dir", "--no-binary", name, "-w", building)
            shop.pip("wheel", *fresh, *options, source, **variables)
            (wheel,) = Path(building).glob("*.whl")
            return wheel.rename(folder / wheel.name)
