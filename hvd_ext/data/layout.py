"""How a packed file is laid out; pure.

    header    4096 x n bytes: magic, length and crc32 of what follows, JSON (`Header`)
    records   each at a multiple of 64 bytes, of 4096 if it has 64 KiB or more; its fields
              at multiples of 64, the one whose length varies last
    index     u64 offset and u64 bytes of each record
    checks    u32 crc32 of each MiB of each record
    names     JSON, a list of strings; read only to name a record
    footer    64 bytes at the very end: where all that is, and its crc32s

Numbers are little-endian. The footer says how long the file is, so a file that was cut,
or is not all there yet, is found by one read.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from hvd_ext.units import KIB, MIB

MAGIC = b"HVDPACK1"
BLOCK_BYTES = MIB
FOOTER_BYTES = 64
HEADER_BYTES = 4 * KIB  # a multiple of it
_HEAD = struct.Struct("<8sII")
_FOOTER = struct.Struct("<8s5Q3I")
_PIXELS = struct.Struct("<3Q")

Kind = Literal["array", "bytes", "pixels"]


class DamagedError(ValueError):
    """What was read is not what a packed file holds; the message says which part."""


@dataclass(frozen=True)
class Field:
    """A part of every record.

    Attributes:
        name: as in {"image": ..., "label": ...}.
        kind: "array": of `dtype` and `shape`, the same in all records; "bytes": as it was
            in a file of its own; "pixels": a decoded image, (H, W, C) of uint8.
        dtype: of an array, as numpy writes it.
        shape: of an array.
    """

    name: str
    kind: Kind
    dtype: str = "|u1"
    shape: tuple[int, ...] = ()

    @property
    def count_bytes(self) -> int:
        """Bytes of an array."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Header:
    """What all records have in common.

    Attributes:
        samples: number of records.
        fields: of each record; at most the last one varies in length.
        classes: what labels are places in; may be empty.
    """

    samples: int
    fields: tuple[Field, ...]
    classes: tuple[str, ...] = ()

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each field begins in a record."""
        begins = [0]
        for field in self.fields[:-1]:
            begins.append(aligned(begins[-1] + field.count_bytes, 64))
        return tuple(begins)

    def encode(self) -> bytes:
        """The bytes of the header, padded."""
        text = json.dumps(asdict(self)).encode()
        head = _HEAD.pack(MAGIC, len(text), crc32(text)) + text
        return head.ljust(aligned(len(head), HEADER_BYTES), b"\0")


def header_bytes(beginning: bytes) -> int:
    """How long a header is that begins so."""
    if len(beginning) < _HEAD.size or beginning[:8] != MAGIC:
        raise DamagedError("the header")
    return aligned(_HEAD.size + int(_HEAD.unpack_from(beginning)[1]), HEADER_BYTES)


def decode_header(data: bytes) -> Header:
    """Read a header.

    Raises:
        DamagedError: it is not one, or has other bits.
    """
    magic, length, check = _HEAD.unpack_from(data)
    text = data[_HEAD.size : _HEAD.size + length]
    if magic != MAGIC or crc32(text) != check:
        raise DamagedError("the header")
    known = json.loads(text)
    fields = (Field(**{**field, "shape": tuple(field["shape"])}) for field in known["fields"])
    return Header(known["samples"], tuple(fields), tuple(known["classes"]))


@dataclass(frozen=True)
class Footer:
    """Where the sections are: each from one number to the next, the last up to the footer."""

    file_bytes: int
    records: int
    index: int
    checks: int
    names: int
    section_checks: tuple[int, int, int]  # crc32 of index, checks and names

    def encode(self) -> bytes:
        """The bytes of the footer."""
        places = (self.file_bytes, self.records, self.index, self.checks, self.names)
        data = _FOOTER.pack(MAGIC, *places, *self.section_checks)
        return data + struct.pack("<I", crc32(data))

    @property
    def sections(self) -> dict[str, tuple[int, int]]:
        """Begin and end of what stands behind the records."""
        ends = (self.checks, self.names, self.file_bytes - FOOTER_BYTES)
        begins = (self.index, self.checks, self.names)
        return dict(zip(("index", "checks", "names"), zip(begins, ends, strict=True), strict=True))


def decode_footer(data: bytes, file_bytes: int) -> Footer:
    """Read the last bytes of a file that is `file_bytes` long.

    Raises:
        DamagedError: they are not a footer, have other bits, or the file has another length.
    """
    if len(data) != FOOTER_BYTES or crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise DamagedError("the end")
    magic, *places = _FOOTER.unpack(data[:-4])
    if magic != MAGIC or places[0] != file_bytes:
        raise DamagedError("the end")
    file_bytes, records, index, checks, names, *crcs = places
    return Footer(file_bytes, records, index, checks, names, (crcs[0], crcs[1], crcs[2]))


def fingerprint(header: bytes, footer: bytes) -> str:
    """A digest of all of a file: the footer's checksums are of the checksums of everything."""
    return hashlib.sha256(header + footer).hexdigest()


def aligned(position: int, to: int) -> int:
    """The next multiple of `to` at or behind a position."""
    return -(-position // to) * to


def record_begin(position: int, record_bytes: int) -> int:
    """Where a record goes that cannot begin before a position."""
    return aligned(position, 4 * KIB if record_bytes >= 64 * KIB else 64)


def blocks(record_bytes: int) -> int:
    """How many checksums a record has."""
    return -(-record_bytes // BLOCK_BYTES)


def touched(field: Field, begin: int, box: tuple[tuple[int, int], ...]) -> NDArray[np.bool_]:
    """Which blocks of its record a box of an array lies in.

    Args:
        field: the array.
        begin: where it begins in the record.
        box: (first, end) along each of its dims.
    """
    item = np.dtype(field.dtype).itemsize
    found = np.zeros(blocks(begin + field.count_bytes) + 1, np.int64)
    if any(first >= end for first, end in box):
        return found[:-1] > 0
    # A run is contiguous: the last dim that is cut, and all dims behind it, which are whole.
    cut = [k for k, ends in enumerate(box) if ends != (0, field.shape[k])]
    inner = cut[-1] if cut else 0
    steps = [item * prod(field.shape[k + 1 :]) for k in range(len(box))]
    starts = np.array([begin + sum(box[k][0] * steps[k] for k in range(inner, len(box)))])
    for k in range(inner):
        starts = np.add.outer(starts, np.arange(*box[k]) * steps[k]).ravel()
    run_bytes = (box[inner][1] - box[inner][0]) * steps[inner] if box else item
    np.add.at(found, starts // BLOCK_BYTES, 1)
    np.add.at(found, (starts + run_bytes - 1) // BLOCK_BYTES + 1, -1)
    return np.cumsum(found)[:-1] > 0


def encode_pixels(image: NDArray[np.uint8]) -> bytes:
    """An image (H, W, C), its shape before it."""
    return _PIXELS.pack(*image.shape).ljust(64, b"\0") + image.tobytes()


def decode_pixels(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The image (H, W, C) of `encode_pixels`."""
    return data[64:].reshape(_PIXELS.unpack_from(data.data))
