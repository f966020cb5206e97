"""The formats in which gradients travel between nodes: pure."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_ext.errors import UsageError

BLOCK = 256  # elements that share a scale in int8, as in codec.c
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Format:
    """A format, for float32; other dtypes travel as they are.

    Attributes:
        name: as `compression=` takes it.
        number: in codec.c's enum format.
        has_residual: what is rounded away becomes part of the next step's gradient.
        about: what a user should know.
    """

    name: str
    number: int
    has_residual: bool
    about: str


NONE = Format("none", 0, False, "float32 as it is")
BF16 = Format("bf16", 1, False, "2 bytes an element: 8 bits of precision, float32's range")
FP16 = Format("fp16", 2, False, "2 bytes an element: 11 bits of precision, at most 65504")
INT8 = Format(
    "int8",
    3,
    True,
    f"1 byte an element and 4 for every {BLOCK}; what is rounded away is sent in the next step; "
    "parameters of one dimension as they are",
)
FORMATS = {f.name: f for f in (NONE, BF16, FP16, INT8)}
# What "auto" chooses from: the least lossy first.
CANDIDATES = (NONE, BF16, INT8)


def parse(text: str) -> Format | None:
    """The format of that name; None for "auto", which measures.

    Raises:
        UsageError: there is none.
    """
    if text == AUTO:
        return None
    if text not in FORMATS:
        raise UsageError(f"invalid compression {text!r}: use one of {', '.join(FORMATS)}, {AUTO}")
    return FORMATS[text]


def wire_bytes(format: Format, counts: list[tuple[int, bool]]) -> int:
    """What one copy of these gradients is in a message.

    Args:
        format: of float32.
        counts: elements of each, and whether it has more than one dimension.
    """
    total = 0
    for count, is_matrix in counts:
        if format is NONE or (format is INT8 and not is_matrix):
            total += 4 * count
        elif format is INT8:
            total += count + 4 * -(-count // BLOCK)
        else:
            total += 2 * count
    return total
