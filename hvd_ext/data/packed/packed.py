"""Reading a packed file: by pread, whole blocks, each checked against its checksum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from hvd_ext.data.agreed import agreed
from hvd_ext.data.packed import layout
from hvd_ext.data.packed.boxes import extent_of, per_dim, runs
from hvd_ext.data.packed.layout import BLOCK_BYTES, DamagedError, Field, Header
from hvd_ext.data.packed.tables import Tables
from hvd_ext.data.reading import Bytes, FileReader
from hvd_ext.data.staging.staging import StagedCopy
from hvd_ext.errors import UsageError
from hvd_ext.units import MIB

if TYPE_CHECKING:
    from mpi4py import MPI

_ANNOUNCED_BYTES = 4 * MIB


class PackedFile:
    """The samples of a packed file: `len(file)`, and `file[i]`, a dict of the fields.

    An "array" field is an array, "bytes" are bytes, "pixels" an (H, W, C) image of uint8.
    Any thread may read; a copy that was pickled opens the file again.

    Attributes:
        path: the file.
        tables: its tables of the records.
        copy: the copy on the node's own disk, if one was requested.
    """

    def __init__(
        self,
        path: Path | str,
        tables: Tables | None = None,
        *,
        stage_to: Path | str | None = None,
        share_staging: MPI.Comm | None = None,
    ) -> None:
        """Open a file; with `share_staging` a collective.

        Args:
            path: the file.
            tables: tables that another rank has read; None: they are read.
            stage_to: a folder on this node's own disk, which gets a copy while the file is used;
                pieces that are there are read from it. One copy serves all processes of the node,
                and later ones.
            share_staging: ranks of all nodes, which read the file once together for their
                copies, and send each other the pieces; None: each node reads all of it.

        Raises:
            UsageError: it cannot be read, is not a packed file, is cut off or damaged, or is not
                the file of the tables.
            HvdExtError: there is no space for the copy. With `share_staging` each of these is
                raised on all ranks.
        """
        self.path = Path(path)
        with agreed(share_staging):
            self._reader = FileReader(self.path)
            self.tables = tables or Tables.read_from(self._reader)
            if self._reader.file_bytes != self.tables.footer.file_bytes:
                raise UsageError(
                    f"{path} has {self._reader.file_bytes} bytes here, and "
                    f"{self.tables.footer.file_bytes} on rank 0: give all ranks the same file"
                )
        self._names: list[str] | None = None
        self._offsets = self.tables.header.offsets
        counts = -(-self.tables.places[:, 1].astype(np.int64) // BLOCK_BYTES)
        self._first_check = np.concatenate([[0], np.cumsum(counts)])
        self._stage_to = stage_to
        self.copy: StagedCopy | None = None
        if stage_to:
            source, folder = self._reader, Path(stage_to)
            self.copy = StagedCopy(source, self.fingerprint, folder, share_staging)

    @property
    def header(self) -> Header:
        """Fields and classes."""
        return self.tables.header

    @property
    def fingerprint(self) -> str:
        """Return the checksum of the whole file."""
        return self.tables.fingerprint

    @property
    def bytes_read(self) -> int:
        """Return the bytes that this object has read from the file, also for its copy."""
        return self._reader.bytes_read

    def __len__(self) -> int:
        """Number of samples."""
        return self.header.samples

    def __getitem__(self, sample: int) -> dict[str, Any]:
        """Return all fields of a sample.

        Raises:
            UsageError: it is damaged, or cannot be read.
        """
        if not 0 <= sample < len(self):
            raise IndexError(sample)
        return self.decode(sample, self.record(sample))

    def record(self, sample: int, wanted: NDArray[np.bool_] | None = None) -> Bytes:
        """Return the bytes of a record.

        Args:
            sample: its number.
            wanted: the blocks to read; the content of the others is undefined. None: all.

        Raises:
            UsageError: it is damaged, or cannot be read.
        """
        offset, length = map(int, self.tables.places[sample])
        data = np.empty(length, np.uint8)
        count = layout.blocks(length)
        for first, end in [(0, count)] if wanted is None else runs(wanted):
            piece = data[first * BLOCK_BYTES : end * BLOCK_BYTES]
            begin = offset + first * BLOCK_BYTES
            reader = self._reader_of(begin, piece.size)
            reader.into(piece, begin)
            for block in range(first, end):
                check = crc32(data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES].data)
                if check != self.tables.checks[self._first_check[sample] + block]:
                    raise UsageError(
                        f"{reader.path}: {self._called(sample)} is damaged: its checksum differs: "
                        + (
                            "copy or pack the file again"
                            if reader is self._reader
                            else "delete this copy"
                        )
                    )
        return data

    def announce(self, sample: int) -> None:
        """Ask the kernel to begin reading a record that is needed soon.

        Args:
            sample: number of the sample.
        """
        offset, length = map(int, self.tables.places[sample])
        # Reading a longer record keeps the disk busy by itself.
        if length <= _ANNOUNCED_BYTES:
            self._reader_of(offset, length).announce(offset, length)

    def _reader_of(self, begin: int, count: int) -> FileReader:
        """Return the path of the copy, if it has these bytes by now."""
        return self.copy.reader if self.copy and self.copy.has(begin, count) else self._reader

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each record."""
        return self.tables.places[:, 1].astype(np.int64)

    def decode(self, sample: int, record: Bytes) -> dict[str, Any]:
        """Return the fields of a sample.

        Args:
            sample: number of the sample, for errors.
            record: its bytes, as `record` returns them.

        Raises:
            UsageError: the number of its pixels does not match their shape.
        """
        values: dict[str, Any] = {}
        for field, begin in zip(self.header.fields, self._offsets, strict=True):
            if field.kind == "array":
                values[field.name] = _array(record, field, begin)
            elif field.kind == "bytes":
                values[field.name] = record[begin:].tobytes()
            else:
                try:
                    values[field.name] = layout.decode_pixels(record[begin:])
                except DamagedError as error:
                    raise UsageError(
                        f"{self.path}: {self._called(sample)} is damaged: {error}: pack the file "
                        "again"
                    ) from error
        return values

    def field(self, name: str) -> PackedField:
        """Return an "array" field of all samples, which can be sliced like an array.

        Args:
            name: name of the field.

        Raises:
            UsageError: there is no such field.
        """
        arrays = [field.name for field in self.header.fields if field.kind == "array"]
        if name not in arrays:
            raise UsageError(
                f"{self.path} has no array {name!r}: it has "
                f"{', '.join(map(layout.printable, arrays)) or 'none'}"
            )
        place = [field.name for field in self.header.fields].index(name)
        return PackedField(self, self.header.fields[place], self._offsets[place])

    def name(self, sample: int) -> str:
        """Return the name of a sample in its source, such as a path.

        Args:
            sample: number of the sample.

        Raises:
            UsageError: the names cannot be read, or are damaged.
        """
        if self._names is None:
            names = self.tables.read_names(self._reader)
            self._names = names or [f"sample {i}" for i in range(len(self))]
        return self._names[sample]

    def _called(self, sample: int) -> str:
        return f"sample {sample} ({layout.printable(self.name(sample))})"

    def close(self) -> None:
        """Close the file, and stop copying it."""
        if self.copy:
            self.copy.close()
        self._reader.close()

    def __enter__(self) -> PackedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], PackedFile], tuple[()]]:
        """Pickle by path; the receiver opens the file again, without shared staging."""
        return partial(PackedFile, self.path, self.tables, stage_to=self._stage_to), ()


@dataclass(frozen=True)
class PackedField:
    """An array over all samples; a slice reads only the blocks that it touches.

    Attributes:
        file: the packed file.
        field: name, dtype and shape of a sample's array.
        begin: offset in a record, in bytes.
    """

    file: PackedFile
    field: Field
    begin: int

    @property
    def shape(self) -> tuple[int, ...]:
        """`(samples, *shape of one)`."""
        return (len(self.file), *self.field.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return np.dtype(self.field.dtype)

    def of(self, record: Bytes) -> NDArray[Any]:
        """Return a view of the array in a record.

        Args:
            record: bytes of a sample, as `PackedFile.record` returns them.
        """
        return _array(record, self.field, self.begin)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.file)

    def __getitem__(self, index: Any) -> Any:
        """Return the elements that numbers and slices select, as a NumPy array would.

        Raises:
            IndexError: a number is out of range, or there are more numbers than dimensions.
            TypeError: the index has an entry of another type, such as a list.
            UsageError: a sample is damaged, or cannot be read.
        """
        rows, *inner = per_dim(index, len(self.shape))
        samples = range(len(self))[rows]
        chosen = [range(extent)[part] for part, extent in zip(inner, self.field.shape, strict=True)]
        wanted = layout.touched(self.field, self.begin, tuple(map(extent_of, chosen)))

        def cut(sample: int) -> Any:
            return self.of(self.file.record(sample, wanted))[tuple(inner)]

        if isinstance(samples, int):
            return cut(samples)
        lengths = (len(part) for part in chosen if isinstance(part, range))
        result = np.empty((len(samples), *lengths), self.dtype)
        for row, sample in enumerate(samples):
            result[row] = cut(sample)
        return result


def _array(record: Bytes, field: Field, begin: int) -> NDArray[Any]:
    return record[begin : begin + field.count_bytes].view(field.dtype).reshape(field.shape)
