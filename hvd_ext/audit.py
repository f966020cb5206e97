"""The file of an audit: fingerprints of what one rank trained with, for each step.

A line of JSON says what was audited; records of a fixed length follow, each of little-endian
unsigned 64-bit numbers. A truncated record, which a killed job leaves behind, is not read.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hvd_ext.errors import UsageError

FORMAT = 1
SUFFIX = ".audit"
# Stands for a fingerprint that was not taken. A fingerprint that is 0 is written as 1.
UNKNOWN = 0


@dataclass(frozen=True)
class Header:
    """The subject of an audit.

    Attributes:
        rank, size: this rank's number, and how many there are.
        optimizer: its number among those that the program made.
        names: the parameters, in the optimizer's order.
        every: number of steps from one audit to the next.
        environment: facts that may change bits: versions, threads, settings.
        backward: the parameters' names in the order in which their gradients were first computed.
        replicas: the first one of the ranks that hold the same sums and parameters after every
            step.
    """

    rank: int
    size: int
    optimizer: int
    names: tuple[str, ...]
    every: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    backward: tuple[str, ...] = ()
    replicas: int = 0


@dataclass(frozen=True)
class Record:
    """A step. Fingerprints are in the order of Header.names.

    Attributes:
        step: number of the step, from 1; 0 has the parameters before the first step.
        inputs: fingerprint of all inputs of the model.
        gradients: those of this rank before the exchange.
        sums: those after the exchange.
        parameters: those after the update.
    """

    step: int
    inputs: int
    gradients: Sequence[int]
    sums: Sequence[int]
    parameters: Sequence[int]


@dataclass(frozen=True)
class Audit:
    """One rank's file."""

    header: Header
    records: Sequence[Record]


class Writer:
    """Writes the file of one rank; a record survives the process once `add` has returned."""

    def __init__(self, folder: Path, optimizer: int, rank: int) -> None:
        """Make the file, which is empty until `begin`.

        Raises:
            UsageError: the file exists, or cannot be written.
        """
        path = folder / f"optimizer{optimizer}.rank{rank}{SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb", buffering=0)
        except FileExistsError:
            raise UsageError(
                f"{folder} holds an audit: name another folder, or remove it"
            ) from None
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None

    def begin(self, header: Header) -> None:
        """Write the header."""
        line = json.dumps({"hvd_ext_audit": FORMAT, **asdict(header)})
        self._file.write(line.encode() + b"\n")

    def add(self, record: Record) -> None:
        """Write a step."""
        numbers = array("Q", [record.step, record.inputs])
        for values in (record.gradients, record.sums, record.parameters):
            numbers.extend(values)
        if sys.byteorder == "big":
            numbers.byteswap()
        self._file.write(numbers.tobytes())

    def close(self) -> None:
        """End the file."""
        self._file.close()


def read(path: Path) -> Audit:
    """Read the file of one rank.

    Raises:
        UsageError: it is not an audit, or has another version.
    """
    try:
        line, _, rest = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if not line:
        raise UsageError(f"{path} is empty: that rank ended before its first step")
    try:
        document = json.loads(line)
        version = document.pop("hvd_ext_audit")
        lists = {key: tuple(document[key]) for key in ("names", "backward") if key in document}
        header = Header(**{**document, **lists})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UsageError(
            f"{path} is not an audit: name a folder that HVD_EXT_AUDIT named"
        ) from None
    if version != FORMAT:
        raise UsageError(f"{path} has format {version!r}: this version reads {FORMAT}")
    count = len(header.names)
    words = 2 + 3 * count
    numbers = array("Q")
    numbers.frombytes(rest[: len(rest) // (8 * words) * 8 * words])
    if sys.byteorder == "big":
        numbers.byteswap()
    records = []
    for begin in range(0, len(numbers), words):
        step, inputs, *values = numbers[begin : begin + words]
        parts = (values[i * count : (i + 1) * count] for i in range(3))
        records.append(Record(step, inputs, *parts))
    return Audit(header, records)


def read_folder(folder: Path) -> dict[int, list[Audit]]:
    """Read all files of a folder: for each optimizer those of all its ranks, in order.

    Raises:
        UsageError: there are none, or the file of a rank is missing.
    """
    audits = [read(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    if not audits:
        raise UsageError(
            f"{folder} holds no audit: record one with `hvprof record --audit` or HVD_EXT_AUDIT"
        )
    found: dict[int, list[Audit]] = {}
    for audit in sorted(audits, key=lambda one: (one.header.optimizer, one.header.rank)):
        found.setdefault(audit.header.optimizer, []).append(audit)
    for number, ranks in found.items():
        size = ranks[0].header.size
        missing = sorted(set(range(size)) - {one.header.rank for one in ranks})
        if missing:
            raise UsageError(
                f"{folder} lacks optimizer {number} of rank {missing[0]} of {size}: copy the "
                "files of all nodes there"
            )
    return found
