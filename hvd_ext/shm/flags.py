"""Flags and numbers in memory that ranks of a node share.

A rank that sees a raised flag, or a number, also sees everything that was written before it;
processors do not guarantee that for ordinary writes.
"""

from __future__ import annotations

from hvd_ext.shm.library import load_library


def raise_flag(address: int) -> None:
    """Raise the flag, a byte, at an address of this process."""
    load_library().flag_raise(address)


def is_raised(address: int) -> bool:
    """Whether the flag at an address of this process is raised."""
    return bool(load_library().flag_is_raised(address))


def write_word(address: int, number: int) -> None:
    """Write a number of 64 bits at an address of this process."""
    load_library().word_write(address, number)


def read_word(address: int) -> int:
    """Read the number of 64 bits at an address of this process."""
    return int(load_library().word_read(address))
