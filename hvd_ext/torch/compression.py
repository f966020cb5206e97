"""What `compression=` may be: Horovod's own words, and those of hvd_ext."""

from __future__ import annotations

from typing import Any

import horovod.torch as horovod

from hvd_ext import settings
from hvd_ext.compression.formats import AUTO, BF16, FP16, INT8, NONE, Format, parse, powersgd


class Compression(horovod.Compression):
    """How gradients travel between nodes; within a node they are summed as they are."""

    bf16 = BF16
    int8 = INT8
    auto = AUTO
    powersgd = staticmethod(powersgd)


def wanted(compression: Any) -> Format | str:
    """The format that is asked for, or AUTO; HVD_EXT_COMPRESSION counts where none is.

    Raises:
        UsageError: text that names no format.
        LookupError: a class that only Horovod's own optimizer serves.
    """
    if compression is horovod.Compression.none:
        compression = settings.compression()
    if compression is horovod.Compression.fp16:
        return FP16
    if isinstance(compression, str):
        return parse(compression) or AUTO
    if isinstance(compression, Format):
        return compression
    raise LookupError(f"gradient compression by {getattr(compression, '__name__', compression)}")


def horovods(compression: Any) -> Any:
    """The nearest that Horovod's own optimizer has."""
    if isinstance(compression, (str, Format)):
        name = compression if isinstance(compression, str) else compression.name
        none = name == NONE.name
        return horovod.Compression.none if none else horovod.Compression.fp16
    return compression
