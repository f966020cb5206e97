"""Reads the file of a rank's call sites: the places in the program that call MPI."""

from __future__ import annotations

import stat
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from hvd_ext.errors import UsageError
from hvprof.format.layout import OBJECTS, SITES_FILE, SITES_MAGIC, SITES_VERSION
from hvprof.format.reader import read_bytes, text_of
from hvprof.format.symbols import functions_at, readable
from hvprof.model import Site
from hvprof.printable import printable

_PATIENCE_S = 60


def read_sites(path: Path, names: Sequence[str]) -> tuple[Site, ...]:
    """Read the call sites of one rank, those with most time first; none without such a file.

    Args:
        path: path of the file.
        names: names of the rank's recording, by number.

    Raises:
        UsageError: the file is cut off, foreign, damaged, or of a newer version.
    """
    if not path.exists():
        return ()
    data = read_bytes(path, SITES_FILE.itemsize)
    if data[: len(SITES_MAGIC)] == bytes(len(SITES_MAGIC)):
        return ()
    if not data.startswith(SITES_MAGIC) or len(data) < SITES_FILE.itemsize:
        raise UsageError(f"{path} is cut off, or no file of call sites: record again")
    file = np.frombuffer(data, SITES_FILE, 1)[0]
    if file["version"] != SITES_VERSION:
        raise UsageError(f"{path} has format {file['version']}: this hvprof reads {SITES_VERSION}")
    objects = ["", *(text_of(one) for one in file["objects"].tolist())]
    found = []
    for row in file["at"][file["at"]["calls"] > 0]:
        if row["operation"] >= len(names) or row["object"] > OBJECTS:
            raise UsageError(f"{path} is damaged: no such site {row['key']:#x}; record again")
        # The first one represents the sites that found no room.
        known = row["key"] > 0
        found.append(
            Site(
                operation=names[row["operation"]] if known else "",
                object=objects[row["object"]],
                offset=row["offset"].item(),
                line=row["line"].item(),
                calls=row["calls"].item(),
                time_s=row["time_ns"].item() / 1e9,
                max_s=row["max_ns"].item() / 1e9,
            )
        )
    return tuple(sorted(found, key=lambda site: site.time_s, reverse=True))


def places_of(
    sites: Iterable[Site], recorded_unix_s: float | None = None
) -> dict[tuple[str, int, int], str]:
    """Return the sites' places in the source, by `Site.key`, such as "halo.c:212 (exchange)".

    Lines of C and Fortran need `addr2line` and debugging information. Without them a site is named
    by its function and object, or by its object and offset.

    Args:
        sites: sites of any ranks.
        recorded_unix_s: the end of the recording, in s since 1970; files that were written later
            are not those that ran, and are not used.
    """
    offsets: dict[str, set[int]] = defaultdict(set)
    found = {}
    for site in sites:
        if site.line:
            found[site.key] = f"{Path(site.object).name}:{site.line}"
        else:
            offsets[site.object].add(site.offset)
    for name, of_object in offsets.items():
        chosen = sorted(of_object)
        lines = [] if _is_another(name, recorded_unix_s) else _asked(name, chosen)
        for place, offset in enumerate(chosen):
            function, line = lines[place] if lines else ("", "")
            found[name, offset, 0] = _shown(name, offset, function, line)
    return found


def _is_another(name: str, recorded_unix_s: float | None) -> bool:
    try:
        found = Path(name).stat()
    except OSError:
        return True
    # A damaged name may name a pipe, which would block.
    written_later = recorded_unix_s is not None and found.st_mtime > recorded_unix_s
    return written_later or not stat.S_ISREG(found.st_mode)


def _asked(name: str, offsets: Sequence[int]) -> list[tuple[str, str]]:
    """Return function and line of each offset; none if unknown."""
    # The recorded address is that after the call.
    before = [max(0, offset - 1) for offset in offsets]
    try:
        done = subprocess.run(
            ["addr2line", "-f", "-C", "-e", name, *(f"{offset:#x}" for offset in before)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=True,
        )
        lines = [printable(line) for line in done.stdout.splitlines()]
    except (OSError, subprocess.SubprocessError):
        lines = []
    symbols = [printable(one) for one in functions_at(name, before)]
    if len(lines) != 2 * len(offsets):
        return [(readable(function), "") for function in symbols]
    # Without debugging information addr2line names the nearest function that has a name.
    return [
        (readable(function) if symbol or _has_line(line) else "", line)
        for symbol, function, line in zip(symbols, lines[::2], lines[1::2], strict=True)
    ]


def _has_line(line: str) -> bool:
    number = line.partition(" ")[0].rpartition(":")[2]
    return number.isdecimal() and number != "0"


def _shown(name: str, offset: int, function: str, line: str) -> str:
    file, _, number = line.partition(" ")[0].rpartition(":")
    if _has_line(line):
        return f"{Path(file).name}:{number} ({function})"
    if not name:
        return "unknown"
    short = Path(name).name
    return f"{function} in {short}" if function not in ("", "??") else f"{short} + {offset:#x}"
