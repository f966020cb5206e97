"""Reads the file of a rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hvd_ext.errors import UsageError
from hvprof.format.bins import BINS, bin_edges
from hvprof.format.key import (
    OTHER_PARTNERS,
    PARTNER,
    REGION,
    SOURCES,
    TRAFFIC,
    Key,
    decode,
    decode_all,
)
from hvprof.format.layout import (
    BLOCKS,
    CELL,
    FIXED,
    HEADER,
    MAGIC,
    MOST_CELLS,
    READABLE,
    STATES,
    STEP,
    STEP_COUNTS,
    STEP_TIMES,
)
from hvprof.format.machine import machine_of, usage_of
from hvprof.model import (
    Cell,
    ClockOffset,
    Communicator,
    Histogram,
    Partner,
    RankRecording,
    Region,
    RegistrationCache,
    Step,
)
from hvprof.printable import printable

_TABLES_END = FIXED.fields["steps"][1] if FIXED.fields else 0
_BIN_EDGES = tuple(bin_edges(index) for index in range(BINS))


@lru_cache(1 << 16)  # most are empty, or belong to other ranks
def text_of(field: bytes) -> str:
    """Return the text of a field of characters, up to its first zero."""
    return printable(field.split(b"\0")[0].decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables for the numbers in a rank's keys."""

    names: tuple[str, ...]
    communicators: tuple[Communicator, ...]

    def name(self, number: int) -> str:
        """Return a name by its number, which may be damaged: then it is the last one."""
        return self.names[min(number, len(self.names) - 1)]


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a rank's file: the rank, without its calls.

    Attributes:
        rank, size, pid: its number, the number of ranks, and its process id.
        host: its host's name.
        state: one of `STATES`.
        start_unix_ns, start_clock_ns: the time when MPI had started, on both clocks of the host.
        clock: the name of the second clock, the same for all processes of one boot of a machine.
        steps: number of ended steps.
        tables: tables for the numbers in its current calls.
    """

    rank: int
    size: int
    pid: int
    host: str
    state: str
    start_unix_ns: int
    start_clock_ns: int
    clock: str
    steps: int
    tables: Tables


def read_head(path: Path) -> Head | None:
    """Read the beginning of the file of one rank; None if it has not begun the file.

    Raises:
        UsageError: it is cut off, foreign, damaged, or of a newer version.
    """
    data = read_bytes(path, _TABLES_END)
    if not _is_begun(path, data, _TABLES_END):
        return None
    header = np.frombuffer(data, HEADER, 1)[0]
    rank, size, state = header["rank"].item(), header["size"].item(), header["state"].item()
    if not 0 <= rank < size or state >= len(STATES):
        raise UsageError(f"{path} is damaged: rank {rank} of {size}, state {state}; record again")
    fixed = np.frombuffer(data.ljust(FIXED.itemsize, b"\0"), FIXED, 1)[0]
    return Head(
        rank=rank,
        size=size,
        pid=header["pid"].item(),
        host=text_of(header["host"]),
        state=STATES[state],
        start_unix_ns=header["start_unix_ns"].item(),
        start_clock_ns=header["start_clock_ns"].item(),
        clock=text_of(header["clock"]),
        steps=header["step_count"].item(),
        tables=_tables(fixed),
    )


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
    """Return the first `most` bytes of a file.

    Raises:
        UsageError: it cannot be read, or is a pipe or a device, which need not end.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is not a regular file: hvprof did not write it")
        with path.open("rb") as file:
            return file.read(min(most, path.stat().st_size))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def check_version(path: Path, version: int) -> None:
    """Refuse a file of a format that is not read."""
    if version not in READABLE:
        first, last = READABLE[0], READABLE[-1]
        act = "update it" if version > last else "record again"
        raise UsageError(f"{path} has format {version}, this hvprof reads {first} to {last}: {act}")


def read_rank(path: Path) -> RankRecording | None:
    """Read the file of one rank; None if it was killed before it had begun the file.

    Raises:
        UsageError: it is cut off, foreign, damaged, or of a newer version.
    """
    data = read_bytes(path, FIXED.itemsize + MOST_CELLS * CELL.itemsize + 1)
    if not _is_begun(path, data, FIXED.itemsize):
        return None
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
    partners: list[Partner] = []
    for row in table[(table["calls"] > 0) | (table["time_ns"] > 0)]:
        try:
            key = decode(row["key"].item())
            if key.traffic == PARTNER:
                partners.append(_partner(row, key, tables.names))
            elif row["calls"] and key.traffic == REGION:
                regions.append(_region(row, key, tables.names))
            elif row["calls"]:
                cells.append(_cell(row, key, tables))
        except IndexError:
            raise UsageError(
                f"{path} is damaged: no such cell {row['key'].item():#x}; record again"
            ) from None
    knows_queue = bool(head["knows_queue"])
    steps = [step_of(row, knows_queue) for row in fixed["steps"].tolist()[: head["step_count"]]]
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
        unnamed_calls=table["calls"][decode_all(table["key"])["operation"] == 0].sum().item(),
        mpi_library=text_of(head["library"]),
        cells=tuple(cells),
        communicators=tables.communicators[1 : head["communicators"]],
        regions=tuple(regions),
        partners=tuple(sorted(partners, key=lambda one: (one.rank, one.direction))),
        usage=usage_of(header["usage"]),
        machine=machine_of(header["machine"]),
        steps=tuple(sorted(steps, key=lambda step: step.index)),
        step_count=head["step_count"],
        all_steps=step_of(header["all_steps"].item(), knows_queue) if head["step_count"] else None,
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
        cores=head["cores"],
        host_cores=head["host_cores"],
        knows_queue=knows_queue,
        yields=bool(head["yields"]),
    )


def _is_begun(path: Path, data: bytes, want: int) -> bool:
    # The recorder writes the magic last.
    if data[: len(MAGIC)] == bytes(len(MAGIC)):
        return False
    if not data.startswith(MAGIC[: len(data)]):
        raise UsageError(f"{path} is not a rank's recording: hvprof did not write it")
    version = int.from_bytes(data[8:12], "little")
    if len(data) >= 12:
        check_version(path, version)
    if len(data) < want:
        raise _cut_off(path, len(data), want)
    return True


def _cut_off(path: Path, have: int, want: int) -> UsageError:
    return UsageError(f"{path} is cut off: {have} of {want} bytes; record again")


@lru_cache(1 << 16)
def _communicator(row: tuple[Any, ...]) -> Communicator:
    number, size, rank, name, ranks = row
    shown = f"{number:016x}" if number else ""
    return Communicator(shown, max(1, size), text_of(name), text_of(ranks), rank)


def step_of(row: tuple[int, ...], knows_queue: bool) -> Step:
    """A step from a row of the file's table, times in s."""
    found: dict[str, Any] = dict(zip(STEP.names or (), row, strict=True))
    times_s = {f"{name}_s": found[f"{name}_ns"] / 1e9 for name in STEP_TIMES}
    if not knows_queue:
        times_s["queued_s"] = None
    return Step(index=found["index"], **times_s, **{name: found[name] for name in STEP_COUNTS})


def _partner(row: Any, key: Key, names: tuple[str, ...]) -> Partner:
    return Partner(
        rank=-1 if key.partner == OTHER_PARTNERS else key.partner,
        direction=names[key.operation],
        messages=row["calls"].item(),
        message_bytes=row["bytes"].item(),
        blocked_s=row["time_ns"].item() / 1e9,
    )


def _histogram(row: Any) -> Histogram:
    counts = row["histogram"]
    found = np.flatnonzero(counts)
    return tuple(zip(found.tolist(), counts[found].tolist(), strict=True))


def _blocks(row: Any) -> tuple[int, tuple[float, ...]]:
    shift = min(row["block_shift"].item(), 63)
    used = min(BLOCKS, math.ceil(row["calls"].item() / (1 << shift)))
    return 1 << shift, tuple((row["blocks_ns"][:used] / 1e9).tolist())


def _region(row: Any, key: Key, names: tuple[str, ...]) -> Region:
    block_calls, blocks_s = _blocks(row)
    return Region(
        name=names[key.operation],
        kind=names[key.algorithm],
        calls=row["calls"].item(),
        time_s=row["time_ns"].item() / 1e9,
        min_s=row["min_ns"].item() / 1e9,
        max_s=row["max_ns"].item() / 1e9,
        histogram=_histogram(row),
        block_calls=block_calls,
        blocks_s=blocks_s,
    )


def _cell(row: Any, key: Key, tables: Tables) -> Cell:
    names = tables.names
    low, high = _BIN_EDGES[key.size_bin]
    source = SOURCES[key.source]
    communicator = tables.communicators[key.communicator]
    block_calls, blocks_s = _blocks(row)
    # A wait has no size itself: its bytes, and a count in place of a time, are those of its
    # requests.
    waits = source == "mpi" and key.size_bin == 0
    return Cell(
        operation=names[key.operation],
        algorithm=names[key.algorithm],
        traffic=TRAFFIC[key.traffic],
        source=source,
        size=communicator.size,
        low_bytes=low,
        high_bytes=high,
        calls=row["calls"].item(),
        message_bytes=0 if waits else row["bytes"].item(),
        time_s=row["time_ns"].item() / 1e9,
        wait_s=row["wait_ns"].item() / 1e9 if source == "hvd_ext" else None,
        min_s=row["min_ns"].item() / 1e9,
        max_s=row["max_ns"].item() / 1e9,
        datatype=names[key.datatype] if key.datatype else "",
        communicator=communicator.id,
        histogram=_histogram(row),
        block_calls=block_calls,
        blocks_s=blocks_s,
        ended=row["wait_ns"].item() if waits else 0,
        ended_bytes=row["bytes"].item() if waits else 0,
    )
