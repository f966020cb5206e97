"""Names of functions from the symbol tables of executables and libraries (ELF)."""

from __future__ import annotations

import mmap
import re
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_HEADER = np.dtype(
    [
        ("magic", "S4"),
        ("is_64", "u1"),
        ("order", "u1"),
        ("skipped", "V34"),
        ("sections_at", "<u8"),
        ("more", "V10"),
        ("section_bytes", "<u2"),
        ("sections", "<u2"),
        ("names", "<u2"),
    ]
)
_SECTION = np.dtype(
    [
        ("name", "<u4"),
        ("type", "<u4"),
        ("flags", "<u8"),
        ("address", "<u8"),
        ("offset", "<u8"),
        ("bytes", "<u8"),
        ("link", "<u4"),
        ("rest", "V20"),
    ]
)
_SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("address", "<u8"),
        ("bytes", "<u8"),
    ]
)
_SYMBOLS, _DYNAMIC_SYMBOLS, _FUNCTION = 2, 11, 2
# Cython's wrappers of methods: the names of the module and class by length, then a number.
_CYTHON = re.compile(r"__pyx_p[wf]_(.+)")


def functions_at(path: str, offsets: Sequence[int]) -> list[str]:
    """Return the function that contains each offset; "" if the file does not name it."""
    try:
        with (
            Path(path).open("rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as all_,
        ):
            functions = _functions(all_)
    except (OSError, ValueError, IndexError):
        return [""] * len(offsets)
    starts = [start for start, _, _ in functions]
    found = []
    for offset in offsets:
        place = bisect_right(starts, offset) - 1
        start, length, name = functions[place] if place >= 0 else (0, 0, "")
        found.append(name if offset <= start + length else "")
    return found


def _functions(data: Any) -> list[tuple[int, int, str]]:
    """Return begin, bytes and name of each function, in ascending order."""
    header = np.frombuffer(data, _HEADER, 1)[0].copy()
    if header["magic"] != b"\x7fELF" or (header["is_64"], header["order"]) != (2, 1):
        return []
    sections = np.frombuffer(data, _SECTION, header["sections"], int(header["sections_at"])).copy()
    for kind in (_SYMBOLS, _DYNAMIC_SYMBOLS):
        for table in sections[sections["type"] == kind]:
            count, begin = int(table["bytes"]) // _SYMBOL.itemsize, int(table["offset"])
            symbols = np.frombuffer(data, _SYMBOL, count, begin).copy()
            names_at = int(sections[table["link"]]["offset"])
            of_functions = symbols[(symbols["info"] & 15 == _FUNCTION) & (symbols["section"] > 0)]
            found = []
            for one in of_functions[np.argsort(of_functions["address"], kind="stable")]:
                start = names_at + int(one["name"])
                name = data[start : data.find(b"\0", start)].decode(errors="replace")
                found.append((int(one["address"]), int(one["bytes"]), name))
            return found
    return []


def readable(name: str) -> str:
    """Return a function's name in the source.

    "mpi4py.MPI.Comm.Allreduce" for Cython's wrapper; "MPI::scatter" for C++'s
    "void MPI::scatter<long>(std::vector<long> const&)". Other names are returned as they are.
    """
    found = _CYTHON.fullmatch(name)
    if not found:
        return _without_types(name)
    rest, parts = found[1], list[str]()
    while counted := re.match(r"_?(\d+)", rest):
        length, after = int(counted[1]), rest[counted.end() :]
        # The last part is a number without a length.
        if len(after) <= length or not re.match(r"_?\d", after[length:]):
            return ".".join([*parts, after])
        parts.append(after[:length])
        rest = after[length:]
    return name


def _without_types(name: str) -> str:
    """Return a C++ name without its arguments, template arguments and result type."""
    # The names of operators contain such characters themselves.
    if "(" not in name or "operator" in name:
        return name
    kept, depth = "", 0
    for one in name.replace("(anonymous namespace)", "{anonymous}"):
        if one == "(" and not depth:
            break
        depth += (one == "<") - (one == ">")
        kept += one if not depth and one != ">" else ""
    return kept.split()[-1] if kept.strip() else name
