"""Has malloc keep what the program frees, for the next step to use.

A training step frees its activations as backward passes them, and the next step asks for as
much again. As it comes, glibc gives such memory back to the kernel: large blocks are mapped for
one use, and what is free at the top of the heap is cut off beyond some MiB. Then every step
takes its pages from the kernel anew, which zeroes them first.

The memory of a process stays at its peak instead: blocks come from what is free before the heap
grows.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

from hvd_ext import settings

# mallopt's numbers (malloc.h) and values: no block is mapped for itself, and the heap is never
# cut. A higher threshold for mapping would not do: older glibc refuses one above 32 MiB.
_OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1)}
# The same for a program that is yet to start; more bytes than any machine has.
VARIABLES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**62)}


class _Symbol(ctypes.Structure):
    """What dladdr tells of an address: Dl_info."""

    _fields_ = [
        ("library", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def keep_freed_memory() -> str:
    """Have malloc keep what this process frees.

    Returns:
        Why malloc is left as it is; "" if memory is kept.

    Raises:
        UsageError: HVD_EXT_KEEP_MEMORY is neither 0 nor 1.
    """
    if reason := left_alone(os.environ):
        return reason
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return "the C library is not glibc"
    glibc, owner = _library(libc, "gnu_get_libc_version"), _library(libc, "malloc")
    if owner != glibc:
        return f"malloc is that of {owner}"
    refused = [name for name, option in _OPTIONS.items() if not libc.mallopt(*option)]
    return f"glibc refuses {' and '.join(refused)}" if refused else ""


def left_alone(environ: Mapping[str, str]) -> str:
    """Why an environment wants malloc left as it is; "" if it does not.

    Raises:
        UsageError: HVD_EXT_KEEP_MEMORY is neither 0 nor 1.
    """
    if not settings.keep_memory(environ):
        return "HVD_EXT_KEEP_MEMORY=0"
    return next((f"{name}={environ[name]} is set" for name in chosen_names(environ)), "")


def chosen_names(environ: Mapping[str, str]) -> list[str]:
    """Names of the variables that have glibc's malloc do other than what is done here."""
    return [
        name
        for name, value in environ.items()
        # MALLOC_CONF is jemalloc's.
        if (name.startswith("MALLOC_") and name != "MALLOC_CONF" and VARIABLES.get(name) != value)
        or (name == "GLIBC_TUNABLES" and "glibc.malloc." in value)
    ]


def _library(libc: ctypes.CDLL, function: str) -> str:
    """Path of the library whose function the program calls by this name."""
    found = _Symbol()
    libc.dladdr(ctypes.cast(libc[function], ctypes.c_void_p), ctypes.byref(found))
    return os.fsdecode(found.library or b"an unknown library")
