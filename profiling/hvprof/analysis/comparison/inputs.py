"""Inputs of a comparison: recordings, directories of them, and reports in files."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_ext.errors import UsageError
from hvprof.analysis.comparison.step_blocks import StepBlocks, step_blocks
from hvprof.analysis.contention import StepParts, step_parts
from hvprof.analysis.shares import shares
from hvprof.analysis.summary import BLOCKS, SIZE_ROWS, Row, rows
from hvprof.model import Recording
from hvprof.printable import printable
from hvprof.recording.load import META_NAME, RANK_FILES, load
from hvprof.recording.names import name_of

# Version of the JSON of reports.
JSON_VERSION = 2
# Text around the data in a report's page (templates/page.html.j2).
DATA_START = '<script type="application/json" id="hvprof-data">'
_DATA_END = "</script>"
_REPORTS = (".html", ".json")
_MOST_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The part of a recorded run that a comparison needs.

    Attributes:
        name: name of the directory or file.
        ranks: number of recorded ranks.
        rows: rows of its data traffic.
        parts: parts of a step; None if no steps are marked.
        steps: steps in blocks; None without steps, and for reports of earlier versions.
        run_s: mean time of a rank from start to end; 0 if unknown.
        start_unix_s: seconds since 1970; 0 if unknown.
    """

    name: str
    ranks: int
    rows: tuple[Row, ...]
    parts: StepParts | None = None
    steps: StepBlocks | None = None
    run_s: float = 0.0
    start_unix_s: float = 0.0


def run_of(recording: Recording) -> RecordedRun:
    """Take the part of a recording that a comparison needs."""
    directory = recording.directory
    return RecordedRun(
        name_of(directory),
        len(recording.ranks),
        tuple(rows(recording, "data")),
        step_parts(recording),
        step_blocks(recording),
        shares(recording, None, None).run_s,
        recording.start_unix_s or min(rank.start_unix_s for rank in recording.ranks),
    )


def load_side(path: Path) -> tuple[RecordedRun, ...]:
    """Read one side of a comparison.

    Args:
        path: a recording; a file that `hvprof report` wrote with --html or --json; or a directory
            with several of these, which are runs of the same program.

    Raises:
        UsageError: it does not exist, or is damaged.
    """
    if path.is_file():
        return (_read_report(path),)
    if not path.is_dir() or _is_recording(path):
        return (run_of(load(path)),)
    inside = sorted(
        entry
        for entry in path.iterdir()
        if (entry.is_dir() and _is_recording(entry))
        or (entry.is_file() and entry.suffix in _REPORTS)
    )
    if not inside:
        raise UsageError(
            f"{path} holds no recording and no report: name a recording, a directory of"
            " recordings, or a file written by hvprof report --html or --json"
        )
    return tuple(run for entry in inside for run in load_side(entry))


def _is_recording(path: Path) -> bool:
    return (path / META_NAME).exists() or any(path.glob(RANK_FILES))


def _read_report(path: Path) -> RecordedRun:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is larger than any report: name one written by hvprof report")
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".html":
            text = text.partition(DATA_START)[2].partition(_DATA_END)[0]
        data = json.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or "json_version" not in data:
        raise UsageError(
            f"{path} is not a report: name one written by hvprof report --html or --json"
        )
    version = data["json_version"]
    if version != JSON_VERSION:
        raise UsageError(
            f"{path} has format {version!r}, this hvprof reads {JSON_VERSION}:"
            " write it again from the recording"
        )
    try:
        found = tuple(_row(entry) for entry in data["data"])
        if not _of(list, data["ranks"]):
            raise ValueError(path)
        parts = _step_parts(data["step_parts"]) if data.get("step_parts") else None
        steps = _step_blocks(data["step_blocks"]) if data.get("step_blocks") else None
        run_s, start_unix_s = (_number(data.get(name) or 0.0) for name in ("run_s", "start_unix_s"))
        return RecordedRun(
            printable(path.stem), len(data["ranks"]), found, parts, steps, run_s, start_unix_s
        )
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        raise UsageError(f"{path} is damaged: write it again with hvprof report") from None


def _row(entry: dict[str, Any]) -> Row:
    """Read a row from JSON: numbers are checked, and names made printable."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Row):
        value = entry[field.name]
        if field.name in ("operation", "algorithm", "message_size"):
            value = printable(_of(str, value))
        elif field.name == "blocks_s":
            value = tuple(_number(one) for one in _of(list, value))
            if len(value) not in (0, BLOCKS):
                raise ValueError(len(value))
        elif value is not None:
            value = _number(value)
        elif field.name in ("calls", "message_bytes", "time_s"):
            raise ValueError(field.name)
        values[field.name] = value
    if values["message_size"] not in dict(SIZE_ROWS):
        raise ValueError(values["message_size"])
    return Row(**values)


def _step_parts(entry: dict[str, Any]) -> StepParts:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(StepParts):
        value = entry[field.name]
        may_lack = field.name in ("slowed_s", "waiting_s")
        values[field.name] = None if value is None and may_lack else _number(value)
    return StepParts(**values)


def _step_blocks(entry: dict[str, Any]) -> StepBlocks:
    steps, time_s, exposed_s = (
        tuple(_number(one) for one in _of(list, entry[name]))
        for name in ("steps", "time_s", "exposed_s")
    )
    if not (1 <= len(steps) == len(time_s) == len(exposed_s) <= BLOCKS):
        raise ValueError(len(steps))
    if min(steps) < 1 or sum(time_s) <= 0:
        raise ValueError(steps)
    return StepBlocks(tuple(map(int, steps)), time_s, exposed_s, int(_number(entry["warm_up"])))


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(value)
    return value
