"""The element types that hvd_ext reduces: the one list that tables, windows and kernels share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DTypeClass = Literal["float", "half", "integer"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes:
        name: its name in numpy and torch.
        item_bytes: bytes of one element.
        dtype_class: its class in the rows of an algorithm table.
        stored_as: the numpy dtype that holds it; numpy has no bfloat16.
    """

    name: str
    item_bytes: int
    dtype_class: DTypeClass
    stored_as: str


# The order is that of KERNELS in the shared-memory window's C source; a test compares them.
DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("float32", 4, "float", "float32"),
        DType("float64", 8, "float", "float64"),
        DType("float16", 2, "half", "float16"),
        DType("bfloat16", 2, "half", "uint16"),
        DType("int64", 8, "integer", "int64"),
        DType("int32", 4, "integer", "int32"),
        DType("int8", 1, "integer", "int8"),
        DType("uint8", 1, "integer", "uint8"),
    )
}
