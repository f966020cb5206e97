"""Reads a rank's counters while the rank updates them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvd_ext.errors import UsageError
from hvprof.format.key import REGION, SOURCES, TRAFFIC, Key, decode
from hvprof.format.layout import CELL, FIXED, HEADER, MAGIC, MOST_CELLS, NAME_BYTES, STEP, STEPS
from hvprof.format.machine import machine_of
from hvprof.format.reader import check_version, step_of, text_of
from hvprof.machine import Machine
from hvprof.model import Step

_TRIES, _PAUSE_S = 5, 5e-3
_NAMES_END = FIXED.fields["communicators"][1] if FIXED.fields else 0
_STEPS_AT = FIXED.fields["steps"][1] if FIXED.fields else 0
_COUNTED = ("calls", "bytes", "time_ns", "wait_ns")


@dataclass(frozen=True, slots=True)
class Count:
    """The calls of one kind, of all message sizes.

    Attributes:
        operation, algorithm, traffic, source: see `model.Cell`.
        calls, message_bytes, time_s: sums over the calls that have ended.
    """

    operation: str
    algorithm: str
    traffic: str
    source: str
    calls: int
    message_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """One reading of a rank's counters.

    Attributes:
        at_ns: this process's monotonic clock at the reading.
        start_unix_ns: when the rank started MPI.
        dropped_calls: calls for which the rank's table of kinds had no room.
        steps: the sum over the steps that have ended; None if there are none.
        step_end_ns: when the last step ended, on the rank's clock; 0 for none.
        counts: the calls, by kind.
        machine: counters of its machine; None if it has not read them.
    """

    at_ns: int
    start_unix_ns: int
    dropped_calls: int
    steps: Step | None
    step_end_ns: int
    counts: tuple[Count, ...]
    machine: Machine | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    at_ns: int
    header: np.void
    names: bytes
    cells: NDArray[np.void]
    last_step: np.void
    next_step: np.void

    def has_whole_steps(self, after: _Reading) -> bool:
        """Whether the sum of the steps was not written during this reading.

        The recorder first writes a step into its place, then adds it to the sum, and counts it
        last; meanwhile the place of the next step holds that step.
        """
        count = self.header["step_count"]
        writing = self.next_step["time_ns"] > 0 and self.next_step["index"] == count
        return not writing and bool(self.header["all_steps"] == after.header["all_steps"])

    def whole_cells(self, after: _Reading) -> NDArray[np.bool_]:
        """Return the cells that were not written during this reading."""
        later = after.cells[: len(self.cells)]
        whole: NDArray[np.bool_] = (self.cells["lock"] == 0) & (later["lock"] == 0)
        for name in _COUNTED:
            whole &= self.cells[name] == later[name]
        return whole


def read_counters(path: Path) -> Counters | None:
    """Read the counters of a rank; None if it has not begun its file.

    A cell is valid if two readings show it unchanged and unlocked. A cell that was written during
    every reading may lack the latest call.

    Raises:
        UsageError: the file is cut off, foreign or of another version.
    """
    try:
        with path.open("rb", buffering=0) as file:
            before = _read(path, file.fileno())
            if before is None:
                return None
            table, steps = before.cells.copy(), before
            missing = np.ones(len(table), bool)
            steps_are_whole = False
            for _ in range(_TRIES):
                after = _read(path, file.fileno())
                if after is None:
                    return None
                whole = before.whole_cells(after)[: len(table)] & missing
                table[whole] = before.cells[: len(table)][whole]
                missing &= ~whole
                if not steps_are_whole:
                    steps, steps_are_whole = before, before.has_whole_steps(after)
                if steps_are_whole and not missing.any():
                    break
                if not steps_are_whole:
                    # The thread that adds a step may have lost its core.
                    time.sleep(_PAUSE_S)
                before = after
            table[missing] = before.cells[: len(table)][missing]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    header, last = steps.header, steps.last_step
    count = header["step_count"].item()
    end_ns = header["start_clock_ns"] + last["start_ns"] + last["time_ns"] if count else 0
    return Counters(
        at_ns=before.at_ns,
        start_unix_ns=header["start_unix_ns"].item(),
        dropped_calls=header["dropped_calls"].item(),
        steps=step_of(header["all_steps"].item(), bool(header["knows_queue"])) if count else None,
        step_end_ns=int(end_ns),
        counts=tuple(_counts(path, table, before.names)),
        machine=machine_of(header["machine"]),
    )


def _read(path: Path, file: int) -> _Reading | None:
    head = os.pread(file, _NAMES_END, 0)
    # The recorder writes the magic last.
    if head[: len(MAGIC)] == bytes(len(head[: len(MAGIC)])):
        return None
    if not head.startswith(MAGIC[: len(head)]):
        raise UsageError(f"{path} is not a rank's recording: hvprof did not write it")
    if len(head) >= HEADER.itemsize:
        check_version(path, int.from_bytes(head[8:12], "little"))
    _check_length(path, len(head), _NAMES_END)
    header: np.void = np.frombuffer(head, HEADER, 1)[0]
    cells = min(header["cells"].item(), MOST_CELLS)
    count = header["step_count"].item()
    table = os.pread(file, cells * CELL.itemsize, FIXED.itemsize)
    _check_length(path, FIXED.itemsize + len(table), FIXED.itemsize + cells * CELL.itemsize)
    return _Reading(
        at_ns=time.monotonic_ns(),
        header=header,
        names=head[HEADER.itemsize :],
        cells=np.frombuffer(table, CELL),
        last_step=_step(file, max(count - 1, 0)),
        next_step=_step(file, count),
    )


def _step(file: int, index: int) -> np.void:
    row = os.pread(file, STEP.itemsize, _STEPS_AT + index % STEPS * STEP.itemsize)
    found: np.void = np.frombuffer(row.ljust(STEP.itemsize, b"\0"), STEP, 1)[0]
    return found


def _check_length(path: Path, have: int, want: int) -> None:
    if have < want:
        raise UsageError(f"{path} is cut off: {have} of {want} bytes; record again")


@cache
def _key(packed: int) -> Key:
    return decode(packed)


def _counts(path: Path, table: NDArray[np.void], names: bytes) -> Iterator[Count]:
    sums: dict[tuple[int, int, int, int], list[int]] = {}
    for row in table[["key", "calls", "bytes", "time_ns"]].tolist():
        key = _key(row[0])
        if key.traffic >= REGION or not row[0]:
            continue
        kind = (key.operation, key.algorithm, key.traffic, key.source)
        found = sums.setdefault(kind, [0, 0, 0])
        # The bytes of a wait are those of its requests, which count where they begin.
        moved = row[2] if key.size_bin else 0
        for place, value in enumerate((row[1], moved, row[3])):
            found[place] += value
    for (operation, algorithm, traffic, source), (calls, message_bytes, time_ns) in sums.items():
        if source >= len(SOURCES):
            raise UsageError(f"{path} is damaged: source {source} of calls; record again")
        yield Count(
            operation=_name(names, operation),
            algorithm=_name(names, algorithm),
            traffic=TRAFFIC[traffic],
            source=SOURCES[source],
            calls=calls,
            message_bytes=message_bytes,
            time_s=time_ns / 1e9,
        )


def _name(names: bytes, number: int) -> str:
    return text_of(names[number * NAME_BYTES : (number + 1) * NAME_BYTES])
