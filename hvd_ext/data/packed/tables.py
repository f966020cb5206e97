"""The tables of a packed file, which are validated as a whole when they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from hvd_ext.data.packed import layout
from hvd_ext.data.packed.layout import FOOTER_BYTES, DamagedError, Footer, Header
from hvd_ext.data.reading import FileReader
from hvd_ext.errors import UsageError


@dataclass(frozen=True)
class Tables:
    """All of a packed file but its records; one rank may read this for all ranks.

    Attributes:
        header: fields and classes.
        footer: where the sections are.
        fingerprint: fingerprint of the whole file.
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
        """Return the tables of a file.

        Args:
            path: path of the packed file.

        Raises:
            UsageError: there is no such file, it is not a packed file, is cut off or damaged, or
                its tables contradict each other.
        """
        with FileReader(path) as reader:
            return cls.read_from(reader)

    @classmethod
    def read_from(cls, reader: FileReader) -> Tables:
        """Return the tables of an open file; raises like `read`.

        Args:
            reader: the open packed file.
        """
        try:
            return _read(reader)
        except DamagedError as error:
            raise _not_whole(reader.path, error) from error

    def read_names(self, reader: FileReader) -> list[str]:
        """Return the names of the samples, which may be an empty list; raises like `read`.

        Args:
            reader: the open packed file.
        """
        try:
            section = _section(reader, self.footer, "names")
            return layout.decode_names(section, self.header.samples)
        except DamagedError as error:
            raise _not_whole(reader.path, error) from error

    @property
    def table_bytes(self) -> int:
        """Return the bytes that `read` reads from the file."""
        footer = self.footer
        return footer.records + footer.names - footer.index + FOOTER_BYTES


def _read(reader: FileReader) -> Tables:
    if reader.file_bytes < FOOTER_BYTES + layout.HEADER_BYTES:
        raise DamagedError("the end")
    end = reader.read(reader.file_bytes - FOOTER_BYTES, FOOTER_BYTES)
    footer = layout.decode_footer(end, reader.file_bytes)
    beginning = reader.read(0, footer.records)
    if layout.header_bytes(beginning) != footer.records:
        raise DamagedError("the header")
    header = layout.decode_header(beginning)
    places = np.frombuffer(_section(reader, footer, "index", 16 * header.samples), "<u8")
    places = places.reshape(-1, 2)
    layout.check_places(header, footer, places)
    count = int((-(-places[:, 1].astype(np.int64) // layout.BLOCK_BYTES)).sum())
    checks = np.frombuffer(_section(reader, footer, "checks", 4 * count), "<u4")
    return Tables(header, footer, layout.fingerprint(beginning, end), places, checks)


def _not_whole(path: Path, part: DamagedError) -> UsageError:
    return UsageError(
        f"{path} is not a packed file, or is cut off or damaged ({part}): copy it again, or make "
        "it with python -m hvd_ext.data pack"
    )


def _section(reader: FileReader, footer: Footer, name: str, expected: int | None = None) -> bytes:
    begin, end = footer.sections[name]
    if expected not in (None, end - begin):
        raise DamagedError(f"the section {name}")
    data = reader.read(begin, end - begin)
    if crc32(data) != footer.section_checks[list(footer.sections).index(name)]:
        raise DamagedError(f"the section {name}")
    return data
