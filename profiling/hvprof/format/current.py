"""Reads the file of a rank's current calls, while the rank may write it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hvd_ext.errors import UsageError
from hvprof.format.layout import CURRENT, CURRENT_MAGIC, CURRENT_VERSION, MESSAGE, SENT, SLOT, SLOTS
from hvprof.format.reader import text_of

_TRIES = 20
_HEAD_BYTES = 12
# The previous version: in each slot a longer text about a wait, and nothing after the beat.
_WITHOUT_TAGS = 3
_ABOUT_BYTES = 112
_OLDER_BYTES = CURRENT.itemsize - 8 - SENT * MESSAGE.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class CurrentCalls:
    """One reading of a rank's file.

    Attributes:
        processes: the name of the rank's process id namespace, "" if the kernel has none.
        slots: a SLOT for each thread that has called MPI or entered a region.
        entered: number of collectives that it entered on each communicator.
        latest: the operations of the latest collectives; number N is at N % LATEST.
        submitted: keys of the latest operations that it submitted by name.
        sent: a MESSAGE for each of the latest messages that it sent, in order.
        beat: BEAT, its latest sign of life; None if there is none.
    """

    processes: str
    slots: NDArray[np.void]
    entered: NDArray[np.uint32]
    latest: NDArray[np.uint16]
    submitted: frozenset[int]
    sent: NDArray[np.void]
    beat: np.void | None


def read_current(path: Path) -> CurrentCalls | None:
    """Read the current calls of a rank; None if it has not begun its file, or has ended MPI.

    A slot that was written during each of some readings is left out: a thread may have died while
    it wrote.

    Raises:
        UsageError: the file is cut off, foreign or of another version.
    """
    before = after = _read(path)
    kept: dict[int, np.void] = {}
    beat: np.void | None = None
    for _ in range(_TRIES):
        after = _read(path)
        if before is None or after is None:
            return None
        # The second reading begins after the first has ended. A slot whose count of changes is
        # even and the same in both was not written during the first: the content of that reading is
        # whole.
        changes = before["slots"]["changes"]
        whole = (changes == after["slots"]["changes"]) & (changes % 2 == 0)
        for place in np.flatnonzero(whole).tolist():
            kept.setdefault(place, before["slots"][place])
        changes_of_beat = before["beat"]["changes"]
        if changes_of_beat == after["beat"]["changes"] and changes_of_beat % 2 == 0:
            beat = before["beat"]
        if len(kept) == SLOTS and beat is not None:
            break
        before = after
    assert after is not None
    rows = [kept[place] for place in sorted(kept) if kept[place]["thread"]]
    return CurrentCalls(
        processes=text_of(after["processes"]),
        slots=np.array(rows, SLOT),
        entered=after["entered"],
        latest=after["latest"],
        submitted=frozenset(after["submitted"][: after["submitted_end"]].tolist()),
        sent=_in_order(after["sent"], after["sent_end"].item()),
        beat=beat if beat is not None and beat["at_ns"] else None,
    )


def _in_order(sent: NDArray[np.void], end: int) -> NDArray[np.void]:
    first = max(0, end - SENT)
    return sent[[number % SENT for number in range(first, end)]]


def _read(path: Path) -> np.void | None:
    try:
        with path.open("rb", buffering=0) as file:
            data = file.read(CURRENT.itemsize)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if data[: len(CURRENT_MAGIC)] == bytes(len(data[: len(CURRENT_MAGIC)])):
        return None  # the recorder writes the magic last
    if not data.startswith(CURRENT_MAGIC[: len(data)]):
        raise UsageError(f"{path} holds no current calls: hvprof did not write it")
    version = int.from_bytes(data[8:_HEAD_BYTES], "little")
    if len(data) >= _HEAD_BYTES and version not in (_WITHOUT_TAGS, CURRENT_VERSION):
        act = "update it" if version > CURRENT_VERSION else "record again"
        raise UsageError(f"{path} has format {version}, this hvprof reads {CURRENT_VERSION}: {act}")
    count = _OLDER_BYTES if version == _WITHOUT_TAGS else CURRENT.itemsize
    if len(data) < count:
        raise UsageError(f"{path} is cut off: {len(data)} of {count} bytes; record again")
    read = np.frombuffer(data.ljust(CURRENT.itemsize, b"\0"), CURRENT, 1)
    return _with_tags(read) if version == _WITHOUT_TAGS else read[0]


def _with_tags(read: NDArray[np.void]) -> np.void:
    """Convert a file of the previous version, which had no messages, to this version."""
    written = read.copy()
    slots = written["slots"][0]
    about = slots.view(np.uint8).reshape(SLOTS, SLOT.itemsize)[:, -_ABOUT_BYTES:].copy()
    slots["tag"], slots["about"] = 0, about.view(f"S{_ABOUT_BYTES}")[:, 0]
    one: np.void = written[0]
    return one
