"""Text for sizes, times and numbers of things, and parsing of sizes."""

from __future__ import annotations

import re

from hvd_ext.errors import UsageError

KIB = 2**10
MIB = 2**20
GIB = 2**30
MB = 10**6
GB = 10**9

_FACTORS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": KIB,
    "MIB": MIB,
    "GIB": GIB,
}


def parse_bytes(text: str) -> int:
    """Read "64 MiB", "1.5KB" or "4096" as a number of bytes.

    Raises:
        UsageError: the text is not a size, or is negative.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = _FACTORS.get(match.group(2).upper()) if match else None
    if match is None or factor is None:
        raise UsageError(f"invalid size {text!r}: use a number and B, KB, MB, GB, KiB, MiB or GiB")
    return int(float(match.group(1)) * factor)


def format_bytes(count: int) -> str:
    """Write a number of bytes with a binary unit: 1536 -> "1.5 KiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB" if value < 1024 else f"{value:.0f} GiB"


def plural(count: float, one: str, many: str = "") -> str:
    """Return the noun for a number: "rank" or "ranks"; `many` if it is not `one` and an s."""
    return one if count == 1 else many or f"{one}s"


def counted(count: int, one: str, many: str = "") -> str:
    """Write a number of things: "1 rank", "2 ranks", "2 ranks share" (from "rank shares")."""
    return f"{count} {plural(count, one, many)}"


def format_seconds(seconds: float) -> str:
    """Write a duration with the unit that keeps it short: 0.00213 -> "2.13 ms"."""
    # The rounded value determines the unit: 999.9 us is written as 1 ms.
    factor, unit = time_unit(float(f"{seconds:.3g}"))
    value = seconds / factor
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit that keeps a duration short, and its name: 0.00213 -> 1e-3, "ms"."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    return next((one for one in units if seconds >= one[0]), (1e-9, "ns"))
