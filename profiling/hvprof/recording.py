"""Reads what libhvprof.so wrote: one file of fixed size for each rank (see recorder.h)."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from hvd_ext.errors import UsageError

META_NAME = "meta.json"
RANK_FILES = "rank-*.hvprof"

_MAGIC = b"hvprof\r\n"
_VERSION = 1
_HEADER = struct.Struct("<8sIIiiqQQQd64s384s")
_NAMES, _NAME_BYTES = 128, 32
_CELLS = 2048
_CELL_FIELDS = ("key", "calls", "bytes", "time_ns", "wait_ns", "max_ns", "inverted_min_ns", "_")
_CELL = np.dtype([(name, "<u8") for name in _CELL_FIELDS])
_FILE_BYTES = _HEADER.size + _NAMES * _NAME_BYTES + _CELLS * _CELL.itemsize
_TRAFFIC = ("data", "control", "transport")
_SOURCES = ("mpi", "hvd_ext")
_STATES = ("unfinished", "finalized", "exited")
_META_KINDS = (
    ("command", list),
    ("start_unix_s", float),
    ("duration_s", float),
    ("exit_code", int),
    ("versions", dict),
)
_RECORD = "hvprof record -o DIR -- COMMAND"


@dataclass(frozen=True, slots=True)
class Cell:
    """The calls of one kind and one size bin on one rank.

    Attributes:
        operation: "allreduce", "bcast", ...; "iallreduce" for a non-blocking one;
            "exposed" is no exchange but the time a step stood still for them.
        algorithm: "native" for the MPI library's own, or what hvd_ext named.
        traffic: "data", "control" (Horovod's coordination) or "transport" (what hvd_ext
            sends to carry out a reduction that it reports itself).
        source: "mpi" for an intercepted call, "hvd_ext" for one that it reported.
        size: number of ranks of the communicator.
        low_bytes, high_bytes: the bin's smallest and largest message, both included.
        calls: number of calls.
        message_bytes: payload of this rank, summed over the calls.
        time_s: summed over the calls, as are the seconds of it spent in waiting for
            other ranks to arrive (`wait_s`; None where that cannot be told apart).
        min_s, max_s: the shortest and the longest call.
    """

    operation: str
    algorithm: str
    traffic: str
    source: str
    size: int
    low_bytes: int
    high_bytes: int
    calls: int
    message_bytes: int
    time_s: float
    wait_s: float | None
    min_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class RankRecording:
    """What one rank did.

    Attributes:
        state: "finalized" (called MPI_Finalize), "exited" (ended without it) or
            "unfinished" (was killed, or still runs).
        end_unix_s: None for an unfinished rank.
        recorder_cost_s: what recording adds to a call, measured by the rank at its start.
        dropped_calls: calls for which the histogram had no cell left.
    """

    rank: int
    size: int
    host: str
    pid: int
    state: str
    start_unix_s: float
    end_unix_s: float | None
    recorder_cost_s: float
    dropped_calls: int
    mpi_library: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """A job's recording: what was run, and what each rank did, in the order of ranks.

    `start_unix_s` and what follows it are None where `hvprof record` was cut short or
    did not start the job (HVPROF_DIR and LD_PRELOAD set by hand).
    """

    directory: Path
    ranks: tuple[RankRecording, ...]
    command: tuple[str, ...] = ()
    host: str = ""
    start_unix_s: float | None = None
    duration_s: float | None = None
    exit_code: int | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of ranks of the job, recorded or not."""
        return max(rank.size for rank in self.ranks)

    def time_s(self, operation: str, traffic: str = "data") -> float:
        """Time a rank spent in an operation, as a mean over the ranks."""
        total = sum(
            cell.time_s
            for rank in self.ranks
            for cell in rank.cells
            if (cell.operation, cell.traffic) == (operation, traffic)
        )
        return total / len(self.ranks)


def load(directory: str | Path) -> Recording:
    """Read the recording in a directory.

    Raises:
        UsageError: it holds no recording, or one that is cut off, foreign, or of a
            newer version.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory: name one made by {_RECORD}")
    meta = _read_meta(directory / META_NAME)
    paths = sorted(directory.glob(RANK_FILES))
    if not paths:
        why = "its command started no MPI" if meta else f"it has no {RANK_FILES}"
        raise UsageError(f"{directory} holds no recording, {why}: make one with {_RECORD}")
    ranks = sorted((_read_rank(path) for path in paths), key=lambda rank: rank.rank)
    for before, after in pairwise(ranks):
        if before.rank == after.rank:
            raise UsageError(f"{directory} has two files of rank {after.rank}: keep one job's")
    return Recording(
        directory=directory,
        ranks=tuple(ranks),
        command=tuple(printable(str(word)) for word in meta.get("command") or ()),
        host=printable(str(meta.get("host", ""))),
        start_unix_s=meta.get("start_unix_s"),
        duration_s=meta.get("duration_s"),
        exit_code=meta.get("exit_code"),
        versions=meta.get("versions") or {},
    )


def printable(text: str) -> str:
    """The text without what would steer a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def bin_edges(index: int) -> tuple[int, int]:
    """Smallest and largest message of a bin: powers of two have bins of their own."""
    if index == 0:
        return 0, 0
    exponent, between = divmod(index - 1, 2)
    power = 1 << exponent
    return (power + 1, 2 * power - 1) if between else (power, power)


def _read_meta(path: Path) -> dict:
    """The meta data, or nothing where there is none."""
    try:
        meta = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise UsageError(f"{path} is damaged: {error}; remove it to read the ranks alone") from None
    if not isinstance(meta, dict) or any(
        not isinstance(meta.get(key), (kind, type(None))) for key, kind in _META_KINDS
    ):
        raise UsageError(f"{path} is not hvprof's: remove it to read the ranks alone")
    return meta


def _read_rank(path: Path) -> RankRecording:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if not data.startswith(_MAGIC[: len(data)]):
        raise UsageError(f"{path} is no recording of a rank: hvprof did not write it")
    version = int.from_bytes(data[8:12], "little")
    if len(data) >= 12 and version > _VERSION:
        raise UsageError(f"{path} has format {version}, this hvprof reads {_VERSION}: update it")
    if len(data) != _FILE_BYTES:
        raise UsageError(f"{path} is cut off: {len(data)} of {_FILE_BYTES} bytes; record again")
    (_, _, state, rank, size, pid, start, end, dropped, cost, host, library) = _HEADER.unpack_from(
        data
    )
    if not 0 <= rank < size or state >= len(_STATES) or not 0 <= cost < 1e9:
        raise UsageError(f"{path} is damaged: rank {rank} of {size}, state {state}; record again")
    return RankRecording(
        rank=rank,
        size=size,
        host=_text(host),
        pid=pid,
        state=_STATES[state],
        start_unix_s=start / 1e9,
        end_unix_s=end / 1e9 if end else None,
        recorder_cost_s=cost / 1e9,
        dropped_calls=dropped,
        mpi_library=_text(library),
        cells=tuple(_read_cells(path, data)),
    )


def _read_cells(path: Path, data: bytes) -> list[Cell]:
    names = [
        _text(data[start : start + _NAME_BYTES])
        for start in range(_HEADER.size, _HEADER.size + _NAMES * _NAME_BYTES, _NAME_BYTES)
    ]
    table = np.frombuffer(data, _CELL, _CELLS, _HEADER.size + _NAMES * _NAME_BYTES)
    cells = []
    for row in table[table["calls"] > 0]:
        key, calls, total_bytes, time_ns, wait_ns, max_ns, inverted_min_ns, _ = row.item()
        try:
            low, high = _BINS[key >> 48 & 0xFF]
            source = _SOURCES[key >> 58 & 1]
            cells.append(
                Cell(
                    operation=names[key >> 32 & 0xFF],
                    algorithm=names[key >> 40 & 0xFF],
                    traffic=_TRAFFIC[key >> 56 & 3],
                    source=source,
                    size=max(1, key & 0xFFFFFFFF),
                    low_bytes=low,
                    high_bytes=high,
                    calls=calls,
                    message_bytes=total_bytes,
                    time_s=time_ns / 1e9,
                    wait_s=wait_ns / 1e9 if source == "hvd_ext" else None,
                    # A rank that was killed while it counted may lack the minimum.
                    min_s=min(~inverted_min_ns & (2**64 - 1), max_ns) / 1e9,
                    max_s=max_ns / 1e9,
                )
            )
        except IndexError:
            raise UsageError(f"{path} is damaged: no such cell {key:#x}; record again") from None
    return cells


_BINS = tuple(bin_edges(index) for index in range(129))


def _text(field: bytes) -> str:
    return printable(field.split(b"\0")[0].decode(errors="replace"))
