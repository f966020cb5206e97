"""Makes a recording from a Horovod timeline: the messages that Horovod fused, and their times.

Rank 0 writes a timeline (HOROVOD_TIMELINE), which contains tensors, not messages. Tensors whose
MPI_ALLREDUCE began before the first of them ended were one message, because Horovod begins and ends
them together.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_ext.errors import UsageError
from hvprof.format.bins import bin_edges, bin_index, bucket_index
from hvprof.format.layout import BLOCKS
from hvprof.format.writer import encode_rank, rank_path
from hvprof.model import Cell, RankRecording
from hvprof.recording.session import prepare_directory, write_meta

# The activities that are an exchange, by library.
_EXCHANGE = re.compile(
    r"(MPI|NCCL|GLOO|CCL)_(?:CROSS_)?"
    r"(ALLREDUCE|ALLGATHER|BCAST|BROADCAST|ALLTOALL|REDUCESCATTER|ADASUM_ALLREDUCE)"
)
_OPERATIONS = {"broadcast": "bcast", "reducescatter": "reduce_scatter"}
_ITEM_BYTES = {
    **dict.fromkeys(("uint8", "int8", "bool"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
    **dict.fromkeys(("int64", "float64"), 8),
}
_START = "start_time_since_epoch_in_micros"
# Limits of a timeline: it lasts at most a year, starts before 2286, and a message has less than 1
# EB. A file with other numbers is damaged.
_MOST_US, _MOST_START_US, _MOST_BYTES = 3.2e13, 10**16, 10**18
_MOST_DIGITS, _MOST_RANKS = 18, 2**31 - 1


@dataclass(frozen=True, slots=True)
class Message:
    """Tensors that Horovod exchanged together.

    Attributes:
        operation: "allreduce", ...; or "negotiate", the time that a tensor waited until all ranks
            had it.
        algorithm: "native" for MPI's own, "nccl", "gloo" or "ccl".
        tensors: number of fused tensors.
        begin_us, end_us: time after the timeline's start.
    """

    operation: str
    algorithm: str
    datatype: str
    message_bytes: int
    tensors: int
    begin_us: float
    end_us: float


@dataclass(slots=True)
class _Open:
    """A message of which not all tensors are finished."""

    operation: str
    algorithm: str
    begin_us: float
    end_us: float | None = None
    unfinished: set[int] = field(default_factory=set)
    message_bytes: int = 0
    tensors: int = 0
    datatype: str = ""


def import_timeline(
    timeline: Path, directory: Path, *, force: bool, size: int | None = None
) -> int:
    """Write a Horovod timeline's messages into a directory, as a recording of rank 0.

    Args:
        timeline: the file that HOROVOD_TIMELINE named; one that a killed job left
            unfinished is read as far as it goes.
        directory: the directory of the recording, as for `record`.
        force: replace an earlier recording.
        size: ranks of the job; by default the number that the timeline's negotiations show.

    Returns:
        0, the exit code.

    Raises:
        UsageError: it is not a timeline, does not say how many ranks there were, or has numbers
            that a recording does not hold.
    """
    events = read_events(timeline)
    messages = fused_messages(events)
    exchanged = [message for message in messages if message.operation != "negotiate"]
    if not exchanged:
        raise UsageError(f"{timeline} has no exchange of Horovod: give a Horovod timeline")
    size = size or _ranks_in(events)
    if not size:
        raise UsageError(f"{timeline} does not contain the number of ranks: give --size N")
    epoch = (event["args"].get(_START) for event in events if isinstance(event.get("args"), dict))
    starts = (value for value in epoch if isinstance(value, int) and 0 <= value < _MOST_START_US)
    start_us = next(starts, 0)
    end_us = max(message.end_us for message in messages)
    rank = RankRecording(
        rank=0,
        size=size,
        host="",
        pid=0,
        state="exited",
        start_unix_s=start_us / 1e6,
        end_unix_s=(start_us + end_us) / 1e6,
        recorder_cost_s=0.0,
        dropped_calls=0,
        mpi_library="",
        cells=_cells(messages, size),
    )
    try:
        content = encode_rank(rank)
    except OverflowError as error:
        raise UsageError(f"{timeline} does not fit into a recording: {error}") from None
    prepare_directory(directory, force=force)
    rank_path(directory, 0).write_bytes(content)
    write_meta(
        directory,
        {
            "command": ["hvprof", "import", str(timeline)],
            "start_unix_s": start_us / 1e6,
            "duration_s": end_us / 1e6,
            "source": "timeline",
        },
    )
    return 0


def read_events(timeline: Path) -> list[dict[str, Any]]:
    """Return the events of a timeline, up to the place where it was cut off.

    Raises:
        UsageError: it cannot be read, or is not a list of events.
    """
    try:
        text = timeline.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"cannot read {timeline}: {reason}") from None
    try:
        events = json.loads(text)
    except RecursionError:
        events = None
    except ValueError:  # raised for a number of thousands of digits, too
        try:
            events = json.loads(text[: text.rfind("}") + 1] + "]")
        except (ValueError, RecursionError):
            events = None
    if not isinstance(events, list):
        raise UsageError(f"{timeline} is not a Horovod timeline: give HOROVOD_TIMELINE's file")
    return [event for event in events if isinstance(event, dict)]


def fused_messages(events: Iterable[dict[str, Any]]) -> list[Message]:
    """Return the messages in a timeline, in the order of their ends.

    Events that contradict others are skipped, and so are tensors whose end, type or shape is
    missing.
    """
    stacks: dict[int, list[tuple[str, float]]] = defaultdict(list)
    running: dict[str, _Open] = {}
    of_tensor: dict[int, _Open] = {}
    messages: list[Message] = []
    for event in events:
        pid, now_us, phase = event.get("pid"), event.get("ts"), event.get("ph")
        if not isinstance(pid, int) or not isinstance(now_us, int | float):
            continue
        if not 0 <= now_us <= _MOST_US:  # nor is NaN
            continue
        stack = stacks[pid]
        if phase == "B":
            name = str(event.get("name"))
            stack.append((name, now_us))
            found = _EXCHANGE.fullmatch(name)
            if found:
                of_tensor[pid] = _join(running, found, pid, now_us)
        elif phase == "E" and stack:
            name, begin_us = stack.pop()
            message = of_tensor.get(pid)
            if name.startswith("NEGOTIATE_") and begin_us <= now_us:
                messages.append(Message("negotiate", "native", "", 0, 1, begin_us, now_us))
            elif message and _EXCHANGE.fullmatch(name):
                # They end one after the other in the file; the first end is the most accurate.
                message.end_us = message.end_us or now_us
                running.pop(name, None)
            if message and not stack:
                del of_tensor[pid]
                messages += _finish_tensor(message, pid, event.get("args"))
    return messages


def _join(running: dict[str, _Open], found: re.Match[str], pid: int, now_us: float) -> _Open:
    """Return the message of a tensor whose exchange begins now."""
    by, operation = found[1].lower(), found[2].lower().removeprefix("adasum_")
    message = running.get(found[0])
    if message is None:
        algorithm = "native" if by == "mpi" else by
        message = _Open(_OPERATIONS.get(operation, operation), algorithm, now_us)
        running[found[0]] = message
    # The exchange itself starts after the last of them is begun.
    message.begin_us = now_us
    message.unfinished.add(pid)
    return message


def _finish_tensor(message: _Open, pid: int, details: object) -> list[Message]:
    """Add a tensor's type and shape; with the last tensor, the message is complete."""
    message.unfinished.discard(pid)
    if isinstance(details, dict):
        datatype = str(details.get("dtype"))
        tensor_bytes = _tensor_bytes(datatype, str(details.get("shape")))
        if tensor_bytes is not None:
            message.datatype = datatype
            message.message_bytes += tensor_bytes
            message.tensors += 1
    if message.unfinished or not message.tensors or message.end_us is None:
        return []
    return [
        Message(
            operation=message.operation,
            algorithm=message.algorithm,
            datatype=message.datatype,
            message_bytes=message.message_bytes,
            tensors=message.tensors,
            begin_us=message.begin_us,
            end_us=max(message.end_us, message.begin_us),
        )
    ]


def _tensor_bytes(datatype: str, shape: str) -> int | None:
    """Return the bytes of a tensor; None if its type is unknown, or its size impossible."""
    sizes = re.findall(r"\d+", shape)
    if datatype not in _ITEM_BYTES or any(len(size) > _MOST_DIGITS for size in sizes):
        return None
    tensor_bytes = _ITEM_BYTES[datatype] * math.prod(map(int, sizes))
    return tensor_bytes if tensor_bytes < _MOST_BYTES else None


def _ranks_in(events: Iterable[dict[str, Any]]) -> int:
    """Return the highest rank that was ready, plus one; 0 if none was."""
    names = (str(event.get("name")) for event in events if event.get("ph") == "X")
    ranks = (int(name) for name in names if name.isdecimal() and len(name) < _MOST_DIGITS)
    return max((rank + 1 for rank in ranks if rank < _MOST_RANKS), default=0)


def _cells(messages: Iterable[Message], size: int) -> tuple[Cell, ...]:
    groups: dict[tuple[str, str, str, int], list[Message]] = defaultdict(list)
    for message in messages:
        bin_of = bin_index(message.message_bytes)
        groups[message.operation, message.algorithm, message.datatype, bin_of].append(message)
    return tuple(_cell(key, members, size) for key, members in groups.items())


def _cell(key: tuple[str, str, str, int], members: list[Message], size: int) -> Cell:
    operation, algorithm, datatype, index = key
    low, high = bin_edges(index)
    times_s = [(message.end_us - message.begin_us) / 1e6 for message in members]
    histogram: dict[int, int] = defaultdict(int)
    for time_s in times_s:
        histogram[bucket_index(round(time_s * 1e9))] += 1
    block = 1
    while block * BLOCKS < len(times_s):
        block *= 2
    return Cell(
        operation=operation,
        algorithm=algorithm,
        traffic="control" if operation == "negotiate" else "data",
        source="mpi",
        size=size,
        low_bytes=low,
        high_bytes=high,
        calls=len(members),
        message_bytes=sum(message.message_bytes for message in members),
        time_s=sum(times_s),
        wait_s=None,
        min_s=min(times_s),
        max_s=max(times_s),
        datatype=datatype,
        histogram=tuple(sorted(histogram.items())),
        block_calls=block,
        blocks_s=tuple(sum(times_s[at : at + block]) for at in range(0, len(times_s), block)),
    )
