"""Which collective a rank is in: two numbers, which ranks compare when they meet, and text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from hvd_ext.errors import HvdExtError, MismatchError
from hvd_ext.job.stalls import Hosts, name_ranks
from hvd_ext.units import counted


class AgreedError(MismatchError):
    """Raised on all ranks alike, so that they stay in step."""


# A refused or failed collective, as a rank's numbers.
FAILED = 2**64 - 1

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
# How a carrier does it, which it may do in several ways.
STEPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier")
_STEP_AT, _OPERATION_AT, _DTYPE_AT, _OTHERS_AT, _ROOT_AT = 8, 12, 16, 24, 32
_WITHOUT_BYTES = ("all_to_all", "barrier")


@functools.lru_cache(maxsize=1024)
def about(
    name: str,
    dtype: torch.dtype | None = None,
    operation: str = "",
    root: int = -1,
    others: tuple[torch.dtype, ...] = (),
) -> int:
    """All of a collective but its bytes and its steps, as a number.

    Args:
        name: such as "all_reduce()".
        dtype: of its first tensor.
        operation: such as "SUM".
        root: its rank in the group; -1: there is none.
        others: dtypes of the other tensors.
    """
    number = _KINDS.index(name.replace("_single", ""))
    number |= _OPERATIONS.index(operation) << _OPERATION_AT
    number |= _DTYPES.index(str(dtype) if dtype else "") << _DTYPE_AT
    digest = functools.reduce(lambda sum_, x: 31 * sum_ + _DTYPES.index(str(x)) + 1, others, 0)
    return number | digest % 256 << _OTHERS_AT | root + 1 << _ROOT_AT


def step(name: str) -> int:
    """The number of one of STEPS, to be combined with `about`."""
    return STEPS.index(name) << _STEP_AT


def describe(count_bytes: int, number: int, ranks: Sequence[int]) -> str:
    """A collective in words.

    Args:
        count_bytes: of this rank.
        number: `about` and `step`.
        ranks: global, of the group's.
    """

    def field(begin: int, bits: int) -> int:
        return number >> begin & (1 << bits) - 1

    text = _KINDS[field(0, 8)]
    dtype = _DTYPES[field(_DTYPE_AT, 8)].removeprefix("torch.")
    by = STEPS[field(_STEP_AT, 4)]
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


def differ(said: Sequence[str], ranks: Sequence[int], hosts: Hosts) -> MismatchError:
    """The error for ranks that have met in different collectives, the same on all of them.

    Args:
        said: each rank's collective, in words; different.
        ranks: global, of the group's.
        hosts: host name of every rank of the world.
    """
    others = next(text for text in said if text != said[0])

    def called(text: str) -> str:
        them = [rank for rank, theirs in zip(ranks, said, strict=True) if theirs == text]
        return f"{name_ranks(them, hosts)} called {text}"

    return MismatchError(
        f"{called(said[0])}, and {called(others)}: make the same calls in the same order on every "
        "rank, and give a thread that communicates, such as async_save()'s, its own process group"
    )


def failed(name: str, why: Callable[[int], str], ranks: Sequence[int], late: Sequence[int]) -> str:
    """Say who has failed before it reached a collective.

    Args:
        name: of the collective.
        why: for a rank of the group.
        ranks: global, of the group's.
        late: those that have failed, in the group.
    """
    first = late[0]
    return f"{name}: rank {ranks[first]} failed: {why(first)}"


def one_line(error: BaseException) -> str:
    """An error as it is reported to other ranks."""
    text, name = str(error).partition("\n")[0], type(error).__name__
    return text if isinstance(error, HvdExtError) else f"{name}: {text}" if text else name
