"""Reading a packed file: by pread, whole blocks, each checked against its checksum."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvd_ext.data import layout
from hvd_ext.data.layout import BLOCK_BYTES, FOOTER_BYTES, DamagedError, Field, Footer, Header
from hvd_ext.errors import UsageError

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Tables:
    """All of a packed file but its records: what one rank may read for all.

    Attributes:
        header: fields and classes.
        footer: where the sections are.
        fingerprint: of the whole file.
        places: (samples, 2) u64: offset and bytes of each record.
        checks: crc32 of each block of each record, in order.
    """

    header: Header
    footer: Footer
    fingerprint: str
    places: NDArray[np.uint64]
    checks: NDArray[np.uint32]

    @classmethod
    def read(cls, path: Path) -> Tables:
        """Read the tables of a file.

        Raises:
            UsageError: there is no such file, it is no packed file, or is cut off or damaged.
        """
        with _Reader(path) as reader:
            return reader.tables()

    @property
    def table_bytes(self) -> int:
        """Bytes that `read` takes from the file."""
        footer = self.footer
        return footer.records + footer.names - footer.index + FOOTER_BYTES


class PackedFile:
    """The samples of a packed file: `len(file)`, and `file[i]`, a dict of the fields.

    An "array" field is an array, "bytes" are bytes, "pixels" an (H, W, C) image of uint8.
    Any thread may read; a copy that was pickled opens the file anew.
    """

    def __init__(self, path: Path | str, tables: Tables | None = None) -> None:
        """Open a file.

        Args:
            path: the file.
            tables: as another rank has read them; None: they are read.

        Raises:
            UsageError: it cannot be read, is no packed file, is cut off or damaged, or is not
                the file of the tables.
        """
        self.path = Path(path)
        self._reader = _Reader(self.path)
        self.tables = tables or self._reader.tables()
        if self._reader.file_bytes != self.tables.footer.file_bytes:
            raise UsageError(
                f"{path} has {self._reader.file_bytes} bytes here, and "
                f"{self.tables.footer.file_bytes} on rank 0: give all ranks the same file"
            )
        self._names: list[str] | None = None
        self._offsets = self.tables.header.offsets
        counts = -(-self.tables.places[:, 1].astype(np.int64) // BLOCK_BYTES)
        self._first_check = np.concatenate([[0], np.cumsum(counts)])

    @property
    def header(self) -> Header:
        """Fields and classes."""
        return self.tables.header

    @property
    def fingerprint(self) -> str:
        """Of all that the file holds."""
        return self.tables.fingerprint

    @property
    def bytes_read(self) -> int:
        """Bytes that this object took from the file so far."""
        return self._reader.bytes_read

    def __len__(self) -> int:
        """Number of samples."""
        return self.header.samples

    def __getitem__(self, sample: int) -> dict[str, Any]:
        """All fields of a sample.

        Raises:
            UsageError: it is damaged, or cannot be read.
        """
        if not 0 <= sample < len(self):
            raise IndexError(sample)
        return self.decode(self.record(sample))

    def record(self, sample: int, wanted: NDArray[np.bool_] | None = None) -> Bytes:
        """The bytes of a record.

        Args:
            sample: its number.
            wanted: the blocks to read; what the others would hold is not defined. None: all.

        Raises:
            UsageError: it is damaged, or cannot be read.
        """
        offset, length = map(int, self.tables.places[sample])
        data = np.empty(length, np.uint8)
        for first, end in _runs(wanted, layout.blocks(length)):
            piece = data[first * BLOCK_BYTES : end * BLOCK_BYTES]
            self._reader.into(piece, offset + first * BLOCK_BYTES)
            for block in range(first, end):
                check = zlib.crc32(data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES].data)
                if check != self.tables.checks[self._first_check[sample] + block]:
                    raise UsageError(
                        f"{self.path}: sample {sample} ({self.name(sample)}) is damaged: its "
                        "checksum differs: copy or pack the file again"
                    )
        return data

    def decode(self, record: Bytes) -> dict[str, Any]:
        """The fields that a record holds."""
        values: dict[str, Any] = {}
        for field, begin in zip(self.header.fields, self._offsets, strict=True):
            if field.kind == "array":
                values[field.name] = _array(record, field, begin)
            elif field.kind == "bytes":
                values[field.name] = record[begin:].tobytes()
            else:
                values[field.name] = layout.decode_pixels(record[begin:])
        return values

    def field(self, name: str) -> PackedField:
        """An "array" field of all samples, which is sliced as an array is.

        Raises:
            UsageError: there is no such field.
        """
        arrays = [field.name for field in self.header.fields if field.kind == "array"]
        if name not in arrays:
            raise UsageError(
                f"{self.path} has no array {name!r}: it has {', '.join(arrays) or 'none'}"
            )
        place = [field.name for field in self.header.fields].index(name)
        return PackedField(self, self.header.fields[place], self._offsets[place])

    def name(self, sample: int) -> str:
        """What a sample was called where it came from."""
        if self._names is None:
            section = self._reader.section(self.tables.footer, "names")
            self._names = loads(section) or [f"sample {i}" for i in range(len(self))]
        return self._names[sample]

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def __enter__(self) -> PackedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., PackedFile], tuple[Path, Tables]]:
        """Pickled by name; where it goes it is opened again."""
        return PackedFile, (self.path, self.tables)


@dataclass(frozen=True)
class PackedField:
    """An array over all samples, of which only the blocks are read that a slice lies in."""

    file: PackedFile
    field: Field
    begin: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(samples, *shape of one)."""
        return (len(self.file), *self.field.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        return np.dtype(self.field.dtype)

    def __getitem__(self, index: tuple[slice, ...]) -> NDArray[Any]:
        """The block of one slice per dimension, each of step 1.

        Raises:
            UsageError: a sample is damaged, or cannot be read.
        """
        (first, end), *box = (
            part.indices(extent)[:2] for part, extent in zip(index, self.shape, strict=True)
        )
        result = np.empty((end - first, *(high - low for low, high in box)), self.dtype)
        wanted = layout.touched(self.field, self.begin, tuple(box))
        for row, sample in enumerate(range(first, end)):
            record = self.file.record(sample, wanted)
            result[row] = _array(record, self.field, self.begin)[index[1:]]
        return result


class _Reader:
    """An open file, and how much was read of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.bytes_read = path, 0
        self._lock = threading.Lock()
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.file_bytes = os.fstat(self._descriptor).st_size
            # Whole samples are asked for, here and there: reading on would read in vain.
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}: name a packed file") from error

    def tables(self) -> Tables:
        try:
            if self.file_bytes < FOOTER_BYTES + layout.HEADER_BYTES:
                raise DamagedError("the end")
            end = self.read(self.file_bytes - FOOTER_BYTES, FOOTER_BYTES)
            footer = layout.decode_footer(end, self.file_bytes)
            beginning = self.read(0, footer.records)
            if layout.header_bytes(beginning) != footer.records:
                raise DamagedError("the header")
            header = layout.decode_header(beginning)
            places = np.frombuffer(self.section(footer, "index"), "<u8").reshape(-1, 2)
            checks = np.frombuffer(self.section(footer, "checks"), "<u4")
        except DamagedError as error:
            raise self._damaged(str(error)) from error
        return Tables(header, footer, layout.fingerprint(beginning, end), places, checks)

    def section(self, footer: Footer, name: str) -> bytes:
        begin, end = footer.sections[name]
        data = self.read(begin, end - begin)
        if zlib.crc32(data) != footer.section_checks[list(footer.sections).index(name)]:
            raise self._damaged(f"the section {name}")
        return data

    def _damaged(self, part: str) -> UsageError:
        return UsageError(
            f"{self.path} is not a packed file, or is cut off or damaged ({part}): copy it again, "
            "or make it with python -m hvd_ext.data pack"
        )

    def read(self, offset: int, count: int) -> bytes:
        data = np.empty(count, np.uint8)
        self.into(data, offset)
        return data.tobytes()

    def into(self, data: Bytes, offset: int) -> None:
        done = 0
        while done < data.size:
            try:
                count = os.preadv(self._descriptor, [data[done:].data], offset + done)
            except OSError as error:
                raise UsageError(
                    f"cannot read {self.path} at byte {offset + done}: {error.strerror}: "
                    "copy it again"
                ) from error
            if count == 0:
                raise UsageError(
                    f"{self.path} was cut off while it was read, at byte {offset + done} of "
                    f"{self.file_bytes}: copy it again"
                )
            done += count
        with self._lock:
            self.bytes_read += done

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()


def _runs(wanted: NDArray[np.bool_] | None, count: int) -> Sequence[tuple[int, int]]:
    """First and end of each run of blocks that are wanted."""
    if wanted is None:
        return [(0, count)]
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]).astype(np.int8)))
    return [(int(first), int(end)) for first, end in edges.reshape(-1, 2)]


def _array(record: Bytes, field: Field, begin: int) -> NDArray[Any]:
    return record[begin : begin + field.count_bytes].view(field.dtype).reshape(field.shape)
