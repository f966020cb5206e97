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
import re
import struct
from dataclasses import asdict, dataclass
from math import prod
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from hvd_ext.errors import UsageError
from hvd_ext.units import KIB, MIB

MAGIC = b"HVDPACK1"
BLOCK_BYTES = MIB
FOOTER_BYTES = 64
HEADER_BYTES = 4 * KIB  # a multiple of it
_HEAD = struct.Struct("<8sII")
_FOOTER = struct.Struct("<8s5Q3I")
_PIXELS = struct.Struct("<3Q")
_PIXELS_BYTES = 64  # of the shape before an image
_MOST_DIMS = 31  # NumPy has 32, of which the samples are one

Kind = Literal["array", "bytes", "pixels"]


class DamagedError(ValueError):
    """The bytes read are not those of a packed file; the message says which part is wrong."""


@dataclass(frozen=True)
class Field:
    """A part of every record.

    Attributes:
        name: the name, as in {"image": ..., "label": ...}.
        kind: "array": an array of `dtype` and `shape`, the same in all records; "bytes": the
            content of a file; "pixels": a decoded image, (H, W, C) of uint8.
        dtype: type of an array, as numpy writes it.
        shape: shape of an array.

    Raises:
        UsageError: such a field is not possible.
    """

    name: str
    kind: Kind
    dtype: str = "|u1"
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"a field is named {self.name!r:.80}: give it a text as its name")
        if self.kind not in get_args(Kind):
            raise UsageError(f"{self._what} is {self.kind!r:.80}: use array, bytes or pixels")
        if not _is_number(self.dtype):
            raise UsageError(f"{self._what} has the dtype {self.dtype!r:.80}: use one of numbers")
        if len(self.shape) > _MOST_DIMS or not all(type(n) is int and n >= 0 for n in self.shape):
            raise UsageError(
                f"{self._what} has the shape {self.shape!r:.80}: use at most {_MOST_DIMS} numbers "
                "of 0 or more"
            )

    @property
    def count_bytes(self) -> int:
        """Bytes of an array."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def _what(self) -> str:
        return f"field {self.name!r:.80}"


@dataclass(frozen=True)
class Header:
    """The layout that all records share.

    Attributes:
        samples: number of records.
        fields: fields of each record; only the last one may vary in length.
        classes: list that labels index; may be empty.

    Raises:
        UsageError: such records are not possible.
    """

    samples: int
    fields: tuple[Field, ...]
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.samples) is not int or self.samples < 1:
            raise UsageError(f"{self.samples!r:.80} samples: a packed file has one or more")
        names = [field.name for field in self.fields]
        if not names or len(set(names)) < len(names):
            raise UsageError(f"fields {names!r:.80}: give at least one, and no name twice")
        for field in self.fields:
            if field.kind != "array" and field is not self.fields[-1]:
                raise UsageError(f"field {field.name!r:.80} is not an array: make it the last one")
            extents = (self.samples, *(max(1, extent) for extent in field.shape))
            if prod(extents) * np.dtype(field.dtype).itemsize >= 2**63:
                raise UsageError(f"field {field.name!r:.80} has more bytes than can be addressed")
        if not all(isinstance(name, str) for name in self.classes):
            raise UsageError(f"classes {self.classes!r:.80}: give each a text as its name")

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return the offset of each field in a record."""
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
    """Return the length of a header from its first bytes."""
    if len(beginning) < _HEAD.size or beginning[:8] != MAGIC:
        raise DamagedError("the header")
    return aligned(_HEAD.size + int(_HEAD.unpack_from(beginning)[1]), HEADER_BYTES)


def decode_header(data: bytes) -> Header:
    """Read a header.

    Raises:
        DamagedError: it is not a header, or is damaged.
    """
    magic, length, check = _HEAD.unpack_from(data)
    text = data[_HEAD.size : _HEAD.size + length]
    if magic != MAGIC or crc32(text) != check:
        raise DamagedError("the header")
    try:
        known = json.loads(text)
        fields = (Field(**{**field, "shape": tuple(field["shape"])}) for field in known["fields"])
        return Header(known["samples"], tuple(fields), tuple(known["classes"]))
    except UsageError as error:
        raise DamagedError(f"the header: {error}") from error
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise DamagedError("the header") from error


def _is_number(dtype: object) -> bool:
    """Whether elements are plain numbers, without objects or fields."""
    if not isinstance(dtype, str) or not re.fullmatch(r"[<>|=]?[a-z]+[0-9]{0,3}", dtype):
        return False
    try:
        return np.dtype(dtype).kind in "biufc"
    except TypeError:
        return False


@dataclass(frozen=True)
class Footer:
    """The sections' offsets: each section ends where the next one, or the footer, begins."""

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
        """The begin and the end of the tables behind the records."""
        ends = (self.checks, self.names, self.file_bytes - FOOTER_BYTES)
        begins = (self.index, self.checks, self.names)
        return dict(zip(("index", "checks", "names"), zip(begins, ends, strict=True), strict=True))


def decode_footer(data: bytes, file_bytes: int) -> Footer:
    """Read the last bytes of a file that is `file_bytes` long.

    Raises:
        DamagedError: they are not a footer, are damaged, or the file has another length.
    """
    if len(data) != FOOTER_BYTES or crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise DamagedError("the end")
    magic, *places = _FOOTER.unpack(data[:-4])
    if magic != MAGIC or places[0] != file_bytes:
        raise DamagedError("the end")
    file_bytes, records, index, checks, names, *crcs = places
    if not HEADER_BYTES <= records <= index <= checks <= names <= file_bytes - FOOTER_BYTES:
        raise DamagedError("the end")
    return Footer(file_bytes, records, index, checks, names, (crcs[0], crcs[1], crcs[2]))


def fingerprint(header: bytes, footer: bytes) -> str:
    """A digest of the whole file: the footer's checksums cover the checksums of all blocks."""
    return hashlib.sha256(header + footer).hexdigest()


def aligned(position: int, to: int) -> int:
    """Return the next multiple of `to` at or after a position."""
    return -(-position // to) * to


def record_begin(position: int, record_bytes: int) -> int:
    """Return the place of a record that cannot begin before a position."""
    return aligned(position, 4 * KIB if record_bytes >= 64 * KIB else 64)


def check_places(header: Header, footer: Footer, places: NDArray[np.uint64]) -> None:
    """Check that every record is in the section of records, in order, and whole.

    Args:
        header: fields of the records.
        footer: where the records are.
        places: (samples, 2): offset and bytes of each record.

    Raises:
        DamagedError: a record is not.
    """
    # Checked before any addition, which could overflow.
    if places.max() > footer.file_bytes:
        raise DamagedError("the index")
    begins, lengths = places.astype(np.int64).T
    if np.any(lengths > footer.index - begins):
        raise DamagedError("the index")
    if np.any(begins < np.concatenate([[footer.records], (begins + lengths)[:-1]])):
        raise DamagedError("the index")
    last, least = header.fields[-1], header.offsets[-1]
    if last.kind == "array":
        least += last.count_bytes
    elif last.kind == "pixels":
        least += _PIXELS_BYTES
    if lengths.min() < least or (last.kind == "array" and lengths.max() > least):
        raise DamagedError("the index")


def decode_names(data: bytes, samples: int) -> list[str]:
    """Decode the names of the samples; there may be none.

    Raises:
        DamagedError: they are not one text for each sample.
    """
    try:
        names = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError("the names") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DamagedError("the names")
    if names and len(names) != samples:
        raise DamagedError("the names")
    return names


def printable(name: str) -> str:
    """Return a name for a message of one line."""
    return name if name.isprintable() else repr(name)


def blocks(record_bytes: int) -> int:
    """Return the number of checksums of a record."""
    return -(-record_bytes // BLOCK_BYTES)


def touched(field: Field, begin: int, box: tuple[tuple[int, int], ...]) -> NDArray[np.bool_]:
    """Return the blocks of the record that a box of an array touches.

    Args:
        field: the array.
        begin: its offset in the record.
        box: (first, end) along each of its dims.
    """
    item = np.dtype(field.dtype).itemsize
    found = np.zeros(blocks(begin + field.count_bytes) + 1, np.int64)
    if any(first >= end for first, end in box):
        return found[:-1] > 0
    # A run is contiguous: it covers the last dim that is cut, and all dims after it, which are
    # whole.
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
    """Encode an image (H, W, C), with its shape in front."""
    return _PIXELS.pack(*image.shape).ljust(_PIXELS_BYTES, b"\0") + image.tobytes()


def decode_pixels(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Decode the image (H, W, C) of `encode_pixels`.

    Raises:
        DamagedError: the number of bytes does not match the shape.
    """
    shape = _PIXELS.unpack_from(data.data)
    try:
        return data[_PIXELS_BYTES:].reshape(shape)
    except (ValueError, OverflowError) as error:
        raise DamagedError(f"an image of {shape} in {data.size - _PIXELS_BYTES} bytes") from error
