"""Lets malloc keep freed memory for the next step.

A training step frees its activations as backward passes them, and the next step asks for as
much again. By default glibc returns such memory to the kernel: large blocks are mapped for
one use, and the top of the heap is trimmed beyond some MiB. Then every step
takes its pages from the kernel again, which zeroes them first.

Memory that is kept does not grow without bound: blocks come from free memory before the heap
grows.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

from hvd_ext import variables

# mallopt's numbers (malloc.h) and values: no block is mapped for itself, and the heap is never
# cut. A higher threshold for mapping would not do: older glibc refuses one above 32 MiB.
_OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1)}
# The same for a program that is yet to start; more bytes than any machine has.
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
        ("section", ctypes.c_uint16),  # 0: it is defined elsewhere
    ]


class _Loaded(ctypes.Structure):
    """The beginning of what the loader knows of a library: link_map."""


_Loaded._fields_ = [
    ("base", ctypes.c_void_p),
    ("name", ctypes.c_char_p),
    ("dynamic", ctypes.c_void_p),
    ("next", ctypes.POINTER(_Loaded)),
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


def return_free_memory() -> None:
    """Give the kernel what lies free in the heap now: memory of a start that no step needs again.

    A step that needs some of it takes it back once, and keeps it.

    Raises:
        UsageError: as of `keep_freed_memory`.
    """
    libc = ctypes.CDLL(None)
    if not left_alone(os.environ) and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def left_alone(environ: Mapping[str, str]) -> str:
    """Why an environment wants malloc left as it is; "" if it does not.

    Raises:
        UsageError: HVD_EXT_KEEP_MEMORY is neither 0 nor 1.
    """
    if not variables.KEEP_MEMORY.read(environ):
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
    path, defined = _place(libc, libc[function])
    if defined:
        return path
    # A program that is linked to fixed addresses and uses the function's has one for it in itself,
    # from which it jumps to the library's: the first that defines it.
    for name in _loaded(libc):
        try:
            library = ctypes.CDLL(name, os.RTLD_NOLOAD)
            path, defined = _place(libc, library[function])
        except (OSError, AttributeError):  # the kernel's has no file; or neither it nor its own
            continue
        if defined and path == name:
            return name
    return "an unknown library"


def _place(libc: ctypes.CDLL, function: Any) -> tuple[str, bool]:
    """Path of what a function's address lies in, and whether it is defined there."""
    found, entry = _Symbol(), ctypes.POINTER(_Entry)()
    address = ctypes.cast(function, ctypes.c_void_p)
    libc.dladdr1(address, ctypes.byref(found), ctypes.byref(entry), _WITH_ENTRY)
    return os.fsdecode(found.library or b""), bool(entry) and entry.contents.section != 0


def _loaded(libc: ctypes.CDLL) -> list[str]:
    """Paths of the libraries of this process, in the order in which names are looked up.

    Not by dl_iterate_phdr, which holds the loader's lock while its callback waits for Python's.
    """
    paths: list[str] = []
    library = ctypes.POINTER(_Loaded)()
    libc.dlinfo(ctypes.c_void_p(libc._handle), _LINK_MAP, ctypes.byref(library))
    while library:
        paths.append(os.fsdecode(library.contents.name))
        library = library.contents.next
    return paths[1:]  # the first is the program, without a name
