"""The file of a rank, as recorder.h lays it out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvd_ext.errors import UsageError
from hvprof.format.bins import BINS, BUCKETS, bin_edges
from hvprof.recording.model import (
    Cell,
    ClockOffset,
    Communicator,
    Histogram,
    RankRecording,
    Region,
    RegistrationCache,
    Step,
)
from hvprof.text import printable

MAGIC = b"hvprof\r\n"
VERSION = 2
NAMES, NAME_BYTES = 256, 48
COMMUNICATORS, STEPS, MOST_CELLS, BLOCKS = 128, 1024, 4096, 32
TRAFFIC = ("data", "control", "transport", "region")
SOURCES = ("mpi", "hvd_ext", "program")
STATES = ("unfinished", "finalized", "exited")

_STEP_TIMES = ("start", "time", "compute", "exposed", "overlapped", "io", "other")
STEP = np.dtype([("index", "<u8"), *((f"{name}_ns", "<u8") for name in _STEP_TIMES)])
OFFSET = np.dtype([("at_ns", "<u8"), ("offset_ns", "<i8"), ("error_ns", "<u8")])
HEADER = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("state", "<u4"),
        ("rank", "<i4"),
        ("size", "<i4"),
        ("pid", "<i8"),
        ("start_unix_ns", "<u8"),
        ("end_unix_ns", "<u8"),
        ("start_clock_ns", "<u8"),
        ("dropped_calls", "<u8"),
        ("cost_ns", "<f8"),
        ("cells", "<u4"),
        ("communicators", "<u4"),
        ("trace_capacity", "<u8"),
        ("trace_calls", "<u8"),
        ("step_count", "<u8"),
        ("cache_hits", "<u8"),
        ("cache_misses", "<u8"),
        ("offsets", OFFSET, 2),
        ("all_steps", STEP),
        ("clock", "S64"),
        ("cache_source", "S64"),
        ("host", "S64"),
        ("library", "S384"),
        ("reserved", "V216"),
    ]
)
COMMUNICATOR = np.dtype(
    [("id", "<u8"), ("size", "<i4"), ("rank", "<i4"), ("name", "S64"), ("ranks", "S96")]
)
FIXED = np.dtype(
    [
        ("header", HEADER),
        ("names", f"S{NAME_BYTES}", NAMES),
        ("communicators", COMMUNICATOR, COMMUNICATORS),
        ("steps", STEP, STEPS),
    ]
)
CELL = np.dtype(
    [
        ("key", "<u8"),
        ("lock", "<u4"),
        ("block_shift", "<u4"),
        ("calls", "<u8"),
        ("bytes", "<u8"),
        ("time_ns", "<u8"),
        ("wait_ns", "<u8"),
        ("min_ns", "<u8"),
        ("max_ns", "<u8"),
        ("blocks_ns", "<u8", BLOCKS),
        ("histogram", "<u4", BUCKETS),
    ]
)

_BIN_EDGES = tuple(bin_edges(index) for index in range(BINS))


def text_of(field: bytes) -> str:
    """What a field of characters says, up to its first zero."""
    return printable(field.split(b"\0")[0].decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Tables:
    """What the numbers in a rank's keys stand for."""

    names: tuple[str, ...]
    communicators: tuple[Communicator, ...]


def read_tables(path: Path) -> Tables:
    """Read the names and communicators of a file that `read_rank` reads."""
    fixed = np.fromfile(path, FIXED, 1)
    if not len(fixed):
        raise _cut_off(path, 0, FIXED.itemsize)
    return _tables(fixed[0])


def _tables(fixed: Any) -> Tables:
    return Tables(
        names=tuple(text_of(name) for name in fixed["names"].tolist()),
        communicators=tuple(_communicator(row) for row in fixed["communicators"].tolist()),
    )


def read_bytes(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file.

    Raises:
        UsageError: it cannot be read, or is a pipe or a device, which need not end.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no file: hvprof did not write it")
        with path.open("rb") as file:
            return file.read(min(most, path.stat().st_size))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def read_rank(path: Path) -> RankRecording | None:
    """Read the file of one rank; None if it was killed before it had begun the file.

    Raises:
        UsageError: it is cut off, foreign, damaged, or of a newer version.
    """
    data = read_bytes(path, FIXED.itemsize + MOST_CELLS * CELL.itemsize + 1)
    # The recorder writes the magic last.
    if data[: len(MAGIC)] == bytes(len(MAGIC)):
        return None
    if not data.startswith(MAGIC[: len(data)]):
        raise UsageError(f"{path} is no recording of a rank: hvprof did not write it")
    version = int.from_bytes(data[8:12], "little")
    if len(data) >= 12 and version != VERSION:
        raise UsageError(f"{path} has format {version}, this hvprof reads {VERSION}: update it")
    if len(data) < FIXED.itemsize:
        raise _cut_off(path, len(data), FIXED.itemsize)
    fixed = np.frombuffer(data, FIXED, 1)[0]
    header = fixed["header"]
    head = {name: header[name].item() for name in HEADER.names or () if name != "offsets"}
    number, size, state = head["rank"], head["size"], head["state"]
    if not 0 <= number < size or state >= len(STATES) or not 0 <= head["cost_ns"] < 1e9:
        raise UsageError(f"{path} is damaged: rank {number} of {size}, state {state}; record again")
    count = head["cells"]
    want = FIXED.itemsize + count * CELL.itemsize
    if len(data) < want:
        raise _cut_off(path, len(data), want)
    tables = _tables(fixed)
    table = np.frombuffer(data, CELL, count, FIXED.itemsize)
    cells: list[Cell] = []
    regions: list[Region] = []
    for row in table[table["calls"] > 0]:
        try:
            if row["key"] >> np.uint64(24) & np.uint64(3) == TRAFFIC.index("region"):
                regions.append(_region(row, tables.names))
            else:
                cells.append(_cell(row, tables))
        except IndexError:
            raise UsageError(
                f"{path} is damaged: no such cell {row['key'].item():#x}; record again"
            ) from None
    steps = [_step(row) for row in fixed["steps"].tolist()[: head["step_count"]]]
    exposed = head["cache_source"]
    return RankRecording(
        rank=number,
        size=size,
        host=text_of(head["host"]),
        pid=head["pid"],
        state=STATES[state],
        start_unix_s=head["start_unix_ns"] / 1e9,
        end_unix_s=head["end_unix_ns"] / 1e9 if head["end_unix_ns"] else None,
        recorder_cost_s=head["cost_ns"] / 1e9,
        dropped_calls=head["dropped_calls"],
        unnamed_calls=table["calls"][table["key"] & np.uint64(0xFF) == 0].sum().item(),
        mpi_library=text_of(head["library"]),
        cells=tuple(cells),
        communicators=tables.communicators[1 : head["communicators"]],
        regions=tuple(regions),
        steps=tuple(sorted(steps, key=lambda step: step.index)),
        step_count=head["step_count"],
        all_steps=_step(header["all_steps"].item()) if head["step_count"] else None,
        registration_cache=(
            RegistrationCache(text_of(exposed), head["cache_hits"], head["cache_misses"])
            if exposed
            else None
        ),
        trace_capacity=head["trace_capacity"],
        trace_calls=head["trace_calls"],
        clock=text_of(head["clock"]),
        clock_offsets=tuple(
            ClockOffset(at / 1e9, offset / 1e9, error / 1e9)
            for at, offset, error in header["offsets"].tolist()
            if at
        ),
        start_clock_s=head["start_clock_ns"] / 1e9,
    )


def _cut_off(path: Path, have: int, want: int) -> UsageError:
    return UsageError(f"{path} is cut off: {have} of {want} bytes; record again")


def _communicator(row: tuple[Any, ...]) -> Communicator:
    number, size, rank, name, ranks = row
    shown = f"{number:016x}" if number else ""
    return Communicator(shown, max(1, size), text_of(name), text_of(ranks), rank)


def _step(row: tuple[int, ...]) -> Step:
    index, *times = row
    return Step(index, *(time / 1e9 for time in times))


def _histogram(row: Any) -> Histogram:
    counts = row["histogram"]
    found = np.flatnonzero(counts)
    return tuple(zip(found.tolist(), counts[found].tolist(), strict=True))


def _blocks(row: Any) -> tuple[int, tuple[float, ...]]:
    shift = min(row["block_shift"].item(), 63)
    used = min(BLOCKS, math.ceil(row["calls"].item() / (1 << shift)))
    return 1 << shift, tuple((row["blocks_ns"][:used] / 1e9).tolist())


def _region(row: Any, names: tuple[str, ...]) -> Region:
    key = row["key"].item()
    block_calls, blocks_s = _blocks(row)
    return Region(
        name=names[key & 0xFF],
        kind=names[key >> 8 & 0xFF],
        calls=row["calls"].item(),
        time_s=row["time_ns"].item() / 1e9,
        min_s=row["min_ns"].item() / 1e9,
        max_s=row["max_ns"].item() / 1e9,
        histogram=_histogram(row),
        block_calls=block_calls,
        blocks_s=blocks_s,
    )


def _cell(row: Any, tables: Tables) -> Cell:
    names = tables.names
    key = row["key"].item()
    low, high = _BIN_EDGES[key >> 16 & 0xFF]
    source = SOURCES[key >> 26 & 3]
    communicator = tables.communicators[key >> 36 & 0xFF]
    block_calls, blocks_s = _blocks(row)
    return Cell(
        operation=names[key & 0xFF],
        algorithm=names[key >> 8 & 0xFF],
        traffic=TRAFFIC[key >> 24 & 3],
        source=source,
        size=communicator.size,
        low_bytes=low,
        high_bytes=high,
        calls=row["calls"].item(),
        message_bytes=row["bytes"].item(),
        time_s=row["time_ns"].item() / 1e9,
        wait_s=row["wait_ns"].item() / 1e9 if source == "hvd_ext" else None,
        min_s=row["min_ns"].item() / 1e9,
        max_s=row["max_ns"].item() / 1e9,
        datatype=names[key >> 28 & 0xFF] if key >> 28 & 0xFF else "",
        communicator=communicator.id,
        histogram=_histogram(row),
        block_calls=block_calls,
        blocks_s=blocks_s,
    )
