"""Packed files whose checksums are right and whose contents are not what `pack` writes."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from zlib_ng.zlib_ng import crc32

from hvd_ext.data import PackedFile
from hvd_ext.data.packed.layout import BLOCK_BYTES, FOOTER_BYTES, HEADER_BYTES, MAGIC, aligned


@dataclass
class Crafted:
    """The parts of a packed file, any of which may be changed before it is encoded.

    Attributes:
        header: what its JSON says.
        records: the bytes from the header's end to the index.
        places: (samples, 2): offset and bytes of each record, for a header of 4096 bytes.
        names: what the JSON of the names says.
        raw: "header", "index", "checks" or "names": bytes in place of what would be written.
        footer: "records", "index", "checks", "names" or "file_bytes": numbers in place of the
            right ones.
    """

    header: Any
    records: bytearray
    places: list[list[int]]
    names: Any
    raw: dict[str, bytes] = field(default_factory=dict)
    footer: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path) -> Crafted:
        """Take a file apart whose header has 4096 bytes."""
        with PackedFile(path) as file:
            names = [file.name(number) for number in range(len(file))]
            places = file.tables.places.tolist()
            end = file.tables.footer.index
            assert file.tables.footer.records == HEADER_BYTES
        content = path.read_bytes()
        header = json.loads(content[16 : 16 + struct.unpack("<I", content[8:12])[0]])
        return cls(header, bytearray(content[HEADER_BYTES:end]), places, names)

    def encode(self) -> bytes:
        """The file, all of its checksums right."""
        text = self.raw.get("header", json.dumps(self.header).encode())
        head = struct.pack("<8sII", MAGIC, len(text), crc32(text)) + text
        head = head.ljust(aligned(len(head), HEADER_BYTES), b"\0")
        body = head + self.records
        moved = [[begin + len(head) - HEADER_BYTES, length] for begin, length in self.places]
        index = b"".join(n.to_bytes(8, "little") for place in moved for n in place)
        checks = [
            crc32(body[k : min(k + BLOCK_BYTES, begin + length)])
            for begin, length in moved
            if length <= len(body)
            for k in range(begin, begin + length, BLOCK_BYTES)
        ]
        sections = {
            "index": index,
            "checks": np.array(checks, "<u4").tobytes(),
            "names": json.dumps(self.names).encode(),
        }
        sections |= {name: data for name, data in self.raw.items() if name in sections}
        numbers = {"file_bytes": 0, "records": len(head)}
        for name, data in sections.items():
            numbers[name] = len(body)
            body += data
        numbers["file_bytes"] = len(body) + FOOTER_BYTES
        end = struct.pack(
            "<8s5Q3I", MAGIC, *(numbers | self.footer).values(), *map(crc32, sections.values())
        )
        return body + end + struct.pack("<I", crc32(end))
