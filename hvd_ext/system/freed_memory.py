"""Lets malloc keep freed memory for the next step.

A training step frees its activations during backward, and the next step allocates as much again. By
default glibc returns such memory to the kernel: large blocks are mapped separately, and the top of
the heap is trimmed if it has more than some MiB. Every step then gets its pages from the kernel
again, which zeroes them first.

Kept memory does not grow without bound, because blocks come from free memory before the heap grows.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

from hvd_ext import variables

# mallopt's numbers (malloc.h) and values: no block is mapped separately, and the heap is never
# trimmed. A higher threshold for mapping is not enough: older glibc refuses one above 32 MiB.
_OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1)}
# The same as variables, for a program that will start; the number is more bytes than any machine
# has.
VARIABLES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**62)}

_WITH_ENTRY, _LINK_MAP = 1, 2  # RTLD_DL_SYMENT, RTLD_DI_LINKMAP


class _Symbol(ctypes.Structure):
    """The result of dladdr for an address: Dl_info."""

    _fields_ = [
        ("library", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


class _Entry(ctypes.Structure):
    """The beginning of a symbol table's entry: Elf64_Sym."""

    _fields_ = [
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_uint8),
        ("other", ctypes.c_uint8),
        ("section", ctypes.c_uint16),  # 0 if the symbol is defined elsewhere
    ]


class _Loaded(ctypes.Structure):
    """The beginning of the loader's entry for a library: link_map."""


_Loaded._fields_ = [
    ("base", ctypes.c_void_p),
    ("name", ctypes.c_char_p),
    ("dynamic", ctypes.c_void_p),
    ("next", ctypes.POINTER(_Loaded)),
]


def keep_freed_memory() -> str:
    """Make malloc keep the memory that this process frees.

    Returns:
        The reason why malloc stays unchanged; "" if memory is kept.

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


def return_free_memory() -> None:
    """Return the heap's free memory to the kernel: memory of the start that no step needs again.

    A step that needs some of it gets it back once, and keeps it.

    Raises:
        UsageError: as in `keep_freed_memory`.
    """
    libc = ctypes.CDLL(None)
    if not left_alone(os.environ) and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def left_alone(environ: Mapping[str, str]) -> str:
    """Return the reason why an environment leaves malloc unchanged; "" if there is none.

    Raises:
        UsageError: HVD_EXT_KEEP_MEMORY is neither 0 nor 1.
    """
    if not variables.KEEP_MEMORY.read(environ):
        return "HVD_EXT_KEEP_MEMORY=0"
    return next((f"{name}={environ[name]} is set" for name in chosen_names(environ)), "")


def chosen_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of set variables that configure glibc's malloc differently."""
    return [
        name
        for name, value in environ.items()
        # MALLOC_CONF is jemalloc's.
        if (name.startswith("MALLOC_") and name != "MALLOC_CONF" and VARIABLES.get(name) != value)
        or (name == "GLIBC_TUNABLES" and "glibc.malloc." in value)
    ]


def _library(libc: ctypes.CDLL, function: str) -> str:
    """Return the path of the library whose function the program calls by this name."""
    path, defined = _place(libc, libc[function])
    if defined:
        return path
    # A program that is linked to fixed addresses and uses the function's address has an entry for
    # it in itself, which jumps to that of the first library that defines it.
    for name in _loaded(libc):
        try:
            library = ctypes.CDLL(name, os.RTLD_NOLOAD)
            path, defined = _place(libc, library[function])
        except (OSError, AttributeError):  # the kernel's library has no file; or it is unknown
            continue
        if defined and path == name:
            return name
    return "an unknown library"


def _place(libc: ctypes.CDLL, function: Any) -> tuple[str, bool]:
    """Return the path of the file that contains a function's address, and whether it defines it."""
    found, entry = _Symbol(), ctypes.POINTER(_Entry)()
    address = ctypes.cast(function, ctypes.c_void_p)
    libc.dladdr1(address, ctypes.byref(found), ctypes.byref(entry), _WITH_ENTRY)
    return os.fsdecode(found.library or b""), bool(entry) and entry.contents.section != 0


def _loaded(libc: ctypes.CDLL) -> list[str]:
    """List the paths of this process's libraries, in the order in which names are looked up.

    This does not use dl_iterate_phdr, which holds the loader's lock while its callback waits for
    the GIL.
    """
    paths: list[str] = []
    library = ctypes.POINTER(_Loaded)()
    libc.dlinfo(ctypes.c_void_p(libc._handle), _LINK_MAP, ctypes.byref(library))
    while library:
        paths.append(os.fsdecode(library.contents.name))
        library = library.contents.next
    return paths[1:]  # the first is the program, without a name
