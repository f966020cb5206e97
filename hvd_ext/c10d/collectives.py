"""torch's collectives as numbers, which the engine compares, and as text."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from hvd_ext.engine.compared import step_of
from hvd_ext.units import counted

# The setting that limits how long to wait for ranks, in errors.
SETTING = "the timeout of the process group"
# The kinds of collectives: all_gather_single() counts as an all_gather().
_KINDS = (
    "all_reduce()",
    "reduce()",
    "reduce_scatter()",
    "broadcast()",
    "all_gather()",
    "gather()",
    "scatter()",
    "all_to_all()",
    "barrier()",
)
_OPERATIONS = ("", "SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
_DTYPES = ("", *sorted({str(x) for x in vars(torch).values() if isinstance(x, torch.dtype)}))
# Bits 8 to 11 are the engine's step.
_OPERATION_AT, _DTYPE_AT, _OTHERS_AT, _ROOT_AT = 12, 16, 24, 32
_WITHOUT_BYTES = ("all_to_all", "barrier")


@functools.lru_cache(maxsize=1024)
def about(
    name: str,
    dtype: torch.dtype | None = None,
    operation: str = "",
    root: int = -1,
    others: tuple[torch.dtype, ...] = (),
) -> int:
    """Encode all of a collective but its bytes and its steps as a number.

    Args:
        name: such as "all_reduce()".
        dtype: type of its first tensor.
        operation: such as "SUM".
        root: its rank in the group; -1: there is none.
        others: dtypes of the other tensors.
    """
    number = _KINDS.index(name.replace("_single", ""))
    number |= _OPERATIONS.index(operation) << _OPERATION_AT
    number |= _DTYPES.index(str(dtype) if dtype else "") << _DTYPE_AT
    digest = functools.reduce(lambda sum_, x: 31 * sum_ + _DTYPES.index(str(x)) + 1, others, 0)
    return number | digest % 256 << _OTHERS_AT | root + 1 << _ROOT_AT


def describe(count_bytes: int, number: int, ranks: Sequence[int]) -> str:
    """Describe a collective in words.

    Args:
        count_bytes: bytes on this rank.
        number: `about` and `step`.
        ranks: global numbers of the group's ranks.
    """

    def field(begin: int, bits: int) -> int:
        return number >> begin & (1 << bits) - 1

    text = _KINDS[field(0, 8)]
    dtype = _DTYPES[field(_DTYPE_AT, 8)].removeprefix("torch.")
    by = step_of(number)
    if by not in _WITHOUT_BYTES:
        text += f" of {counted(count_bytes, 'byte')}"
    if dtype:
        text += f" of {dtype}"
    if others := field(_OTHERS_AT, 8):
        text += f" and other dtypes (list {others})"
    if operation := _OPERATIONS[field(_OPERATION_AT, 4)]:
        text += f" with {operation}"
    if root := field(_ROOT_AT, 32):
        text += f" with root {ranks[root - 1]}"
    if text.startswith("all_gather()") and by == "broadcast":
        text += ", with tensors of different sizes"
    return text
