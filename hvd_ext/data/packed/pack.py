"""Writing a packed file, checking one, and taking one apart."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain
from json import dumps
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from hvd_ext.cli import Advance
from hvd_ext.data.ahead import map_ahead
from hvd_ext.data.packed.layout import (
    BLOCK_BYTES,
    FOOTER_BYTES,
    Field,
    Footer,
    Header,
    aligned,
    encode_pixels,
    record_begin,
)
from hvd_ext.data.packed.names import file_paths
from hvd_ext.data.packed.packed import PackedFile
from hvd_ext.data.packed.sources import Samples
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.system.files import atomic_path, make_folder

T = TypeVar("T")

_BATCH = 16


def pack(samples: Samples, path: Path, advance: Advance) -> None:
    """Write samples to a file, whole or not at all.

    Args:
        samples: read in order, on threads.
        path: gets the file.
        advance: called with the number of samples written.

    Raises:
        UsageError: a sample cannot be read; no file is made.
        HvdExtError: the file cannot be written.
    """
    header = Header(len(samples), samples.fields, samples.classes)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write(header.encode())
        begin = file.tell()
        places = np.empty((len(samples), 2), "<u8")
        checks: list[int] = []
        records = _ahead(lambda i: encode(header, samples[i]), len(samples))
        for number, record in enumerate(records):
            places[number] = _pad_to(file, record_begin(file.tell(), len(record))), len(record)
            file.write(record)
            checks += [
                crc32(record[k : k + BLOCK_BYTES]) for k in range(0, len(record), BLOCK_BYTES)
            ]
            advance(number + 1)
        names = dumps(samples.names).encode()
        sections = [places.tobytes(), np.array(checks, "<u4").tobytes(), names]
        begins = [_pad_to(file, aligned(file.tell(), 64))]
        for section in sections:
            file.write(section)
            begins.append(file.tell())
        index, check, name, end = begins
        crcs = tuple(crc32(section) for section in sections)
        footer = Footer(end + FOOTER_BYTES, begin, index, check, name, (crcs[0], crcs[1], crcs[2]))
        file.write(footer.encode())
        file.flush()
        os.fsync(file.fileno())


def encode(header: Header, values: dict[str, Any]) -> bytes:
    """Make the record of a sample.

    Raises:
        UsageError: an array does not have the shape of the field.
    """
    record = bytearray()
    for field, begin in zip(header.fields, header.offsets, strict=True):
        record += bytes(begin - len(record)) + _encode_field(field, values[field.name])
    return bytes(record)


def _encode_field(field: Field, value: Any) -> bytes:
    if field.kind == "bytes":
        return bytes(value)
    if field.kind == "pixels":
        return encode_pixels(value)
    if np.shape(value) != field.shape:
        raise UsageError(f"{field.name} of shape {np.shape(value)}: all must be {field.shape}")
    return np.asarray(value, field.dtype).tobytes()


def verify(file: PackedFile, advance: Advance) -> None:
    """Read all of a file.

    Raises:
        UsageError: a part is damaged.
    """
    file.name(0)
    for number, _ in enumerate(_ahead(file.record, len(file))):
        advance(number + 1)


def unpack(file: PackedFile, folder: Path, advance: Advance) -> None:
    """Write images as files, and arrays as FOLDER/field.npy.

    Raises:
        UsageError: a sample is damaged or is not an image, or a name leads out of the folder or
            occurs twice; nothing is written for a wrong name.
        HvdExtError: the folder cannot be written.
    """
    fields = file.header.fields
    last = fields[-1]
    names = [] if last.kind == "array" else [file.name(number) for number in range(len(file))]
    targets = file_paths(file.path, fields, names, folder, "nothing is unpacked")
    try:
        for path in targets:
            make_folder(path.parent)
        if last.kind == "array":
            for field, path in zip(fields, targets, strict=True):
                with atomic_path(path) as temporary:
                    _write_array(file, field, temporary, advance)
            return
        for number, values in enumerate(_ahead(file.__getitem__, len(file))):
            with atomic_path(targets[number]) as temporary:
                if last.kind == "bytes":
                    temporary.write_bytes(values[last.name])
                else:
                    _write_image(file, number, values[last.name], temporary)
            advance(number + 1)
    except OSError as error:
        raise HvdExtError(f"cannot write to {folder}: {error.strerror or error}") from error


def _write_image(file: PackedFile, number: int, pixels: NDArray[np.uint8], path: Path) -> None:
    from PIL import Image

    try:
        Image.fromarray(pixels).save(path)
    except (TypeError, ValueError, SystemError) as error:
        raise UsageError(
            f"{file.path}: sample {number} of shape {pixels.shape} cannot be written as PNG "
            f"({error}): read it as PackedFile(...)[{number}]"
        ) from error


def _write_array(file: PackedFile, field: Field, path: Path, advance: Advance) -> None:
    described = {"descr": field.dtype, "fortran_order": False, "shape": (len(file), *field.shape)}
    with path.open("wb") as stream:
        np.lib.format.write_array_header_2_0(stream, described)
        for number, values in enumerate(_ahead(file.__getitem__, len(file))):
            stream.write(values[field.name].tobytes())
            advance(number + 1)


def _ahead(function: Callable[[int], T], count: int) -> Iterator[T]:
    """Compute the results for 0 to `count` on threads."""
    batches = (range(k, min(k + _BATCH, count)) for k in range(0, count, _BATCH))
    workers = len(os.sched_getaffinity(0))
    return chain.from_iterable(map_ahead(function, batches, workers=workers, ahead=1))


def _pad_to(file: BinaryIO, position: int) -> int:
    file.write(bytes(position - file.tell()))
    return position
