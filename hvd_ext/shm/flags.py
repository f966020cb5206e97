"""Flags in memory that ranks of a node share, one byte each.

Who sees a flag raised sees all that was written before: processors do not promise that of
ordinary writes.
"""

from __future__ import annotations

import ctypes
import functools

from hvd_ext.shm.library import load_library


def raise_flag(address: int) -> None:
    """Raise the flag at an address of this process."""
    load()[0](address)


def is_raised(address: int) -> bool:
    """Whether the flag at an address of this process is raised."""
    return bool(load()[1](address))


@functools.cache
def load() -> tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer]:
    """The functions that write and read a flag.

    Raises:
        WindowError: the library that has them cannot be loaded.
    """
    library = load_library()
    return library.flag_raise, library.flag_is_raised
