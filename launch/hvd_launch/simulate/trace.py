"""The lines that SMPI replays: what each rank sends, receives, waits for and combines.

An algorithm's messages depend on rank and sizes, never on data. So the algorithm itself runs
here, rank after rank, with a communicator that writes lines in place of sending. The lines
hold no times ("time-independent traces"): the platform gives the time of a message and of a byte.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvd_ext.allreduce.algorithms import implementation
from hvd_ext.allreduce.operations import Array, Operation
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.system.files import make_folder
from hvd_ext.units import GIB, format_bytes

# All of a trace's files together.
MOST_BYTES = 2 * GIB
MOST_RANKS = 4096
_BUFFERED_BYTES = 1 << 16
# Set while simulations are being ended: a trace that is being written is given up.
cancelled = threading.Event()
Write = Callable[[str], Any]


class _Request:
    """A message to wait for, which has always arrived."""

    def __init__(self, write: Write, line: str) -> None:
        self._write, self._line = write, line

    def Test(self) -> bool:
        self._write(self._line)
        return True

    def Wait(self) -> None:
        self._write(self._line)


class _Sent:
    """A message that left at once: there is nothing to wait for."""

    def Test(self) -> bool:
        return True

    def Wait(self) -> None:
        pass


_SENT = _Sent()


class Communicator:
    """The mpi4py communicator of one rank of `size`, as algorithms use it: it writes lines.

    A message below `eager_bytes` leaves at once, so one line stands for its sending and for
    the wait that follows.
    """

    def __init__(self, rank: int, size: int, eager_bytes: int, write: Write) -> None:
        self.rank, self.size = rank, size
        self._eager_bytes, self._write = eager_bytes, write

    def Isend(self, buffer: Array, dest: int, tag: int) -> _Request | _Sent:
        if buffer.nbytes < self._eager_bytes:
            self._write(f"{self.rank} send {dest} {tag} {buffer.nbytes}\n")
            return _SENT
        self._write(f"{self.rank} isend {dest} {tag} {buffer.nbytes}\n")
        return _Request(self._write, f"{self.rank} wait {self.rank} {dest} {tag}\n")

    def Irecv(self, buffer: Array, source: int, tag: int) -> _Request:
        self._write(f"{self.rank} irecv {source} {tag} {buffer.nbytes}\n")
        return _Request(self._write, f"{self.rank} wait {source} {self.rank} {tag}\n")

    def Sendrecv(
        self, outgoing: Array, dest: int, tag: int, incoming: Array, source: int, theirs: int
    ) -> None:
        arrival = self.Irecv(incoming, source, theirs)
        departure = self.Isend(outgoing, dest, tag)
        arrival.Wait()
        departure.Wait()


def run(
    algorithm: str, rank: int, size: int, message_bytes: int, eager_bytes: int, write: Write
) -> None:
    """Call `write` with the lines of one rank's allreduce of `message_bytes` of float32.

    A combination of n bytes is a computation of n: the platform's speed is in bytes.
    """

    def combine(first: Array, second: Array, out: Array) -> Array:
        if out.nbytes:
            write(f"{rank} compute {out.nbytes}\n")
        return out

    comm: Any = Communicator(rank, size, eager_bytes, write)
    # Memory that is never touched is never allocated.
    buffer = np.empty(message_bytes // 4, np.float32)
    implementation(algorithm)(comm, buffer, Operation("sum", combine, "SUM"))


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a trace is.

    Attributes:
        total_bytes: length of all files together.
        at_once: messages that a rank awaits at the same time, at most.
    """

    total_bytes: int
    at_once: int


def estimate(algorithm: str, size: int, message_bytes: int, eager_bytes: int) -> Extent:
    """Estimate the size of a trace from some of its ranks, to a few percent."""
    counted = at_once = awaited = 0
    ranks = sorted({0, 1 % size, size // 2, (size - 1) // 2, size - 1})

    def count(line: str) -> None:
        nonlocal counted, at_once, awaited
        counted += len(line)
        awaited += (" irecv " in line) - (" wait " in line)
        at_once = max(at_once, awaited)

    for rank in ranks:
        awaited = 0
        run(algorithm, rank, size, message_bytes, eager_bytes, count)
    return Extent(counted * size // len(ranks), at_once)


def write(
    folder: Path, algorithm: str, size: int, message_bytes: int, eager_bytes: int
) -> tuple[Path, int]:
    """Write a file for each rank into `folder`, which is made, and a list of these files.

    Returns:
        The list, and the bytes of all files.

    Raises:
        UsageError: there would be more than MOST_RANKS ranks, or more than MOST_BYTES.
        HvdExtError: it cannot be written. In either case the folder is gone.
    """
    check(algorithm, size, message_bytes, eager_bytes)

    def lines(rank: int, put: Write) -> None:
        run(algorithm, rank, size, message_bytes, eager_bytes, put)

    return _write(folder, size, lines)


def check(algorithm: str, size: int, message_bytes: int, eager_bytes: int) -> Extent:
    """How large a trace will be.

    Raises:
        UsageError: it would be too long, or of too many ranks.
    """
    if size > MOST_RANKS:
        raise UsageError(f"{size} ranks: a trace has at most {MOST_RANKS}; simulate fewer")
    extent = estimate(algorithm, size, message_bytes, eager_bytes)
    if extent.total_bytes > MOST_BYTES:
        raise UsageError(
            f"the trace of {algorithm}, {size} ranks, {format_bytes(message_bytes)} would have "
            f"{format_bytes(extent.total_bytes)}, more than {format_bytes(MOST_BYTES)}: simulate "
            "fewer ranks"
        )
    return extent


def _write(folder: Path, size: int, lines: Callable[[int, Write], None]) -> tuple[Path, int]:
    make_folder(folder)
    total = 0
    try:
        paths = [folder / str(rank) for rank in range(size)]
        for rank, path in enumerate(paths):
            if cancelled.is_set():
                raise HvdExtError(f"the trace in {folder} was abandoned")
            with path.open("w", _BUFFERED_BYTES) as file:
                file.write(f"{rank} init\n")
                lines(rank, file.write)
                file.write(f"{rank} finalize\n")
                total += file.tell()
            if total > MOST_BYTES:
                raise UsageError(
                    f"a trace has more than {format_bytes(MOST_BYTES)} at rank {rank} of {size}: "
                    "simulate fewer ranks"
                )
        listed = folder / "list"
        listed.write_text("".join(f"{path.resolve()}\n" for path in paths))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise HvdExtError(
            f"cannot write a trace in {folder}: {error.strerror}: set TMPDIR to a larger disk"
        ) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return listed, total
