"""Flags and numbers in memory that ranks of a node share.

A rank that sees a raised flag, or a number, sees everything written before it; processors do not
promise that for ordinary writes.
"""

from __future__ import annotations

import ctypes
import functools

from hvd_ext.shm.library import load_library


def raise_flag(address: int) -> None:
    """Raise the flag, a byte, at an address of this process."""
    load()[0](address)


def is_raised(address: int) -> bool:
    """Whether the flag at an address of this process is raised."""
    return bool(load()[1](address))


def write_word(address: int, number: int) -> None:
    """Write a number of 64 bits at an address of this process."""
    load()[2](address, number)


def read_word(address: int) -> int:
    """The number of 64 bits at an address of this process."""
    return int(load()[3](address))


@functools.cache
def load() -> tuple[ctypes._NamedFuncPointer, ...]:
    """The functions that write and read a flag, and those that write and read a number.

    Raises:
        WindowError: the library that has them cannot be loaded.
    """
    library = load_library()
    return library.flag_raise, library.flag_is_raised, library.word_write, library.word_read
