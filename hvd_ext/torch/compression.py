"""The values of `compression=`: Horovod's own, and those of hvd_ext."""

from __future__ import annotations

from typing import Any

from hvd_ext import variables
from hvd_ext.compression.formats import AUTO, FP16, NONE, Format, Named, parse
from hvd_ext.torch import horovods


class Compression(Named, horovods.Compression):
    """Formats of gradients between nodes; within a node they are summed uncompressed."""


def wanted(compression: Any) -> Format | str:
    """Return the requested format, or AUTO; HVD_EXT_COMPRESSION is the default.

    Raises:
        UsageError: text that names no format.
        LookupError: a class that only Horovod's own optimizer serves.
    """
    if compression is horovods.Compression.none:
        compression = variables.COMPRESSION.read()
    if compression is horovods.Compression.fp16:
        return FP16
    if isinstance(compression, str):
        return parse(compression) or AUTO
    if isinstance(compression, Format):
        return compression
    raise LookupError(f"gradient compression by {getattr(compression, '__name__', compression)}")


def nearest_of_horovods(compression: Any) -> Any:
    """Return the nearest format of Horovod's own optimizer."""
    if isinstance(compression, (str, Format)):
        name = compression if isinstance(compression, str) else compression.name
        none = name == NONE.name
        return horovods.Compression.none if none else horovods.Compression.fp16
    return compression
