"""A sum in an order that does not depend on the ranks: a binary tree over the terms' numbers. Pure.

A reproducible step has a number of slots, each a micro-batch. Slots 2k and 2k + 1 are added
first, then the sums of those pairs, and so on. Slots and ranks are powers of two, so the
consecutive slots of a rank are a subtree, and so are those of a node: the division among ranks
changes no sum. The factor of the average, 1 / slots, is then exact, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from hvd_ext.errors import UsageError
from hvd_ext.units import counted

T = TypeVar("T")


def slots_of_each_rank(slots: int, size: int) -> int:
    """The slots of a step that each rank takes.

    Args:
        slots: slots of a step.
        size: number of ranks.

    Raises:
        UsageError: the ranks' slots are not equal subtrees; the message names numbers that are
            possible.

    Examples:
        >>> slots_of_each_rank(slots=8, size=2)
        4
    """
    if size != _power_of_two(size):
        lower = _power_of_two(size)
        raise UsageError(
            f"reproducible={slots} on {size} ranks: the number of ranks must be a power of two: "
            f"start {lower} or {2 * lower} ranks"
        )
    if slots < size or slots != _power_of_two(slots):
        lower = max(size, _power_of_two(slots) if slots > 0 else 1)
        others = f"{lower} or {2 * lower}"
        raise UsageError(
            f"reproducible={slots} on {counted(size, 'rank')}: the number of slots must be "
            f"a power of two, and at least that of the ranks: give {others}"
        )
    return slots // size


def merges(term: int) -> Iterator[tuple[int, int]]:
    """Return the sums that can be added once `term` is there; terms come in their order.

    Partial sums are kept as a binary counter keeps its digits, so that n terms never need more
    than lg(n) + 1 of them. A partial sum has the number of its first term.

    Yields:
        The left operand, which takes the sum, and the right one, which is then free.

    Examples:
        >>> list(merges(2)), list(merges(3))
        ([], [(2, 3), (0, 2)])
    """
    width = 1
    while term & width:
        right = term - width + 1
        yield right - width, right
        width *= 2


def tree_sum(terms: Iterable[T], add: Callable[[T, T], T]) -> T:
    """The sum of a power of two of terms, in the order of the tree.

    Args:
        terms: the terms in the order of their numbers.
        add: gives the sum of two; may reuse the first.

    Examples:
        >>> tree_sum("abcd", lambda a, b: f"({a}+{b})")
        '((a+b)+(c+d))'
    """
    partial: dict[int, T] = {}
    for number, term in enumerate(terms):
        partial[number] = term
        for left, right in merges(number):
            partial[left] = add(partial[left], partial.pop(right))
    (total,) = partial.values()
    return total


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is not above `number`."""
    return 1 << (number.bit_length() - 1)
