"""Throughput, read from the output of a training command. Pure."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_ext.errors import UsageError

_NUMBER = r"(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
_PER_SECOND = (
    r"(?:img|image|sample|example|item|token|sequence|batche?|step|it)s?\s*/\s*s(?:ec(?:ond)?)?\b"
)
# "12.3 img/sec", and "Img/sec per GPU: 12.3" or "samples/s = 12.3".
DEFAULT_PATTERNS = (
    rf"(?i){_NUMBER}\s*{_PER_SECOND}",
    rf"(?i)\b{_PER_SECOND}[^:=\d]*(?:\d+[^:=\d]*)?[:=]\s*{_NUMBER}",
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A throughput that a line reports; lines of one `shape` differ in their numbers only."""

    shape: str
    rate: float


class Reader:
    """Finds throughputs in lines."""

    def __init__(self, pattern: str | None) -> None:
        """Use `pattern`'s first group, or the matches of DEFAULT_PATTERNS.

        Raises:
            UsageError: not a regular expression, or it has no group.
        """
        try:
            self._patterns = [re.compile(p) for p in ([pattern] if pattern else DEFAULT_PATTERNS)]
        except re.error as error:
            raise UsageError(f"--rate {pattern!r}: invalid regular expression: {error}") from error
        if any(compiled.groups < 1 for compiled in self._patterns):
            raise UsageError(
                f"--rate {pattern!r}: put the number in a group, as in 'rate: ([0-9.]+)'"
            )

    def read(self, line: str) -> Reading | None:
        """Return the throughput in a line, if it shows one above 0."""
        for pattern in self._patterns:
            match = pattern.search(line)
            if match and match.group(1):
                try:
                    rate = float(match.group(1))
                except ValueError:
                    continue
                if 0 < rate < float("inf"):
                    return Reading(re.sub(r"\d+(?:\.\d+)?", "#", line), rate)
        return None


def throughput(readings: Sequence[Reading]) -> float | None:
    """Return one figure for a run: the median over the most frequent kind of line.

    Among equally frequent kinds the last one counts, because programs end with a summary. The first
    of several readings is left out, because programs warm up.
    """
    if not readings:
        return None
    counts = Counter(reading.shape for reading in readings)
    most = max(counts.values())
    shape = next(r.shape for r in reversed(readings) if counts[r.shape] == most)
    rates = [reading.rate for reading in readings if reading.shape == shape]
    return statistics.median(rates[1:] if len(rates) > 2 else rates)
