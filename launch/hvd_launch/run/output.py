"""Output of a job, line by line: each rank's last lines, and which rank failed first. Pure."""

from __future__ import annotations

import re
import signal
from collections import defaultdict, deque
from dataclasses import dataclass

from hvd_launch.backends import slurm
from hvd_launch.backends.libraries import LIBRARIES
from hvd_launch.rank.relay import MARK, OUTPUT_MARK

# Kept lines of each stream, separately, so that a rank's output does not displace its traceback.
LAST_LINES = 20
OUTPUT, ERRORS = 1, 2
_RANK = re.compile(rb"\[(\d{1,7})\] ")
_REPORT = re.compile(rb"rank (\d{1,7}) (exited with code (\d{1,3})|was killed by .{1,20})$")
# A rank that aborts is killed before it can report. These are the libraries' own words.
_ABORTS = (
    *(pattern for library in LIBRARIES.values() for pattern in library.abort_patterns),
    slurm.ABORT_PATTERN,
)


@dataclass(frozen=True)
class FailedRank:
    """The first rank that failed.

    Attributes:
        how: "exited with code 3", "was killed by SIGSEGV", "called MPI_Abort".
    """

    rank: int
    how: str
    code: int | None


class JobOutput:
    """Reads a job's lines as they arrive."""

    def __init__(self) -> None:
        self._last: defaultdict[tuple[int, int], deque[bytes]] = defaultdict(
            lambda: deque(maxlen=LAST_LINES)
        )
        self._shown: deque[int] = deque(maxlen=2 * LAST_LINES)
        self._held: list[bytes] = []
        self._reported: FailedRank | None = None
        self._aborted: FailedRank | None = None

    @property
    def reported(self) -> FailedRank | None:
        """Return the first rank whose own `exec --report` reported its failure."""
        return self._reported

    @property
    def failure(self) -> FailedRank | None:
        """Return the first rank that failed, as far as known."""
        return self._reported or self._aborted

    def line(self, line: bytes, stream: int) -> bytes:
        """Read a line, and return the part of it to show.

        Args:
            line: the line with its end.
            stream: OUTPUT or ERRORS.
        """
        # Open MPI 5 ends its message of an abort with a NUL.
        line = line.lstrip(b"\0")
        shown, mark, text = line.partition(MARK)
        if mark:
            report = _REPORT.match(text.rstrip(b"\n"))
            if report is not None and self._reported is None:
                how = report.group(2).decode(errors="replace")
                code = int(report.group(3)) if report.group(3) else _signal_code(how)
                self._reported = FailedRank(int(report.group(1)), how, code)
            return shown
        rank = _RANK.match(line)
        if rank:
            self._last[int(rank.group(1)), stream].append(line)
            self._shown.append(int(rank.group(1)))
        elif self.failure is not None:
            self._held.append(line)
            return b""
        if self._aborted is None:
            self._aborted = _abort(line)
        return line

    @property
    def held(self) -> list[bytes]:
        """Return the launcher's own lines since a rank failed, which come after that rank's."""
        return list(self._held)

    def just_shown(self, rank: int) -> bool:
        """Whether the last shown lines are the rank's last lines, which need no repetition."""
        count = len(self.last_lines(rank))
        return list(self._shown)[len(self._shown) - count :] == [rank] * count

    def last_lines(self, rank: int) -> list[bytes]:
        """Return the last lines of a rank, oldest first: its output, then its errors."""
        return [line for stream in (OUTPUT, ERRORS) for line in self._last.get((rank, stream), ())]


def arrived(line: bytes, stream: int) -> tuple[bytes, int]:
    """Return a line as the rank wrote it, and its stream; standard error may carry both."""
    if _RANK.match(line) or OUTPUT_MARK not in line:
        return line, stream
    return line.replace(OUTPUT_MARK, b"", 1), OUTPUT


def _signal_code(how: str) -> int | None:
    """Return 128 plus the signal's number, as shells do."""
    name = how.rpartition(" ")[2]
    if name.isdecimal():  # a real-time signal
        return 128 + int(name)
    return 128 + signal.Signals[name] if name in signal.Signals.__members__ else None


def _abort(line: bytes) -> FailedRank | None:
    for pattern in _ABORTS:
        if match := pattern.search(line):
            code = int(match["code"]) if match["code"] else None
            exited = pattern is slurm.ABORT_PATTERN
            how = f"exited with code {code}" if exited else "called MPI_Abort"
            return FailedRank(int(match["rank"]), how, code)
    return None
