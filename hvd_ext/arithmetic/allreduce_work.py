"""Cost formulas of allreduce algorithms: messages, bytes sent and bytes combined.

A message of n bytes takes a + n b, combining n bytes takes n g; p is the number of ranks
(Thakur, Rabenseifner and Gropp, IJHPCA 19, 2005; Sanders, Speck and Traeff, Parallel Computing 35,
2009). Every time is linear in a, b and g.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvd_ext.errors import UsageError
from hvd_ext.units import KIB

# The length of a pipeline's segments. A segment and its scratch fit in a core's second-level cache.
SEGMENT_BYTES = 256 * KIB


@dataclass(frozen=True, slots=True)
class Work:
    """The critical path of an allreduce.

    Attributes:
        messages: number of messages, one after the other.
        sent_bytes: bytes sent, one after the other.
        reduced_bytes: bytes combined.
    """

    messages: float
    sent_bytes: float
    reduced_bytes: float


def work(algorithm: str, size: int, message_bytes: float) -> Work:
    """The work of one allreduce.

    Args:
        algorithm: one of FORMULAS.
        size: number of ranks.
        message_bytes: payload of each rank.

    Raises:
        UsageError: the algorithm has no formula, such as the MPI library's own.
    """
    if algorithm not in FORMULAS:
        raise UsageError(f"algorithm {algorithm!r} has no formula: use {', '.join(FORMULAS)}")
    if size < 1 or message_bytes < 0:
        raise UsageError(f"{size} ranks and {message_bytes} bytes: give at least 1 and 0")
    return FORMULAS[algorithm](size, message_bytes)


def _ring(size: int, message_bytes: float) -> Work:
    """2 (p-1) a + 2 (p-1)/p n b + (p-1)/p n g."""
    share = (size - 1) / size * message_bytes
    return Work(2 * (size - 1), 2 * share, share)


def _recursive_doubling(size: int, message_bytes: float) -> Work:
    """Lg p (a + n b + n g), and 2 a + 2 n b + n g where p is not a power of two."""
    count, folded = _rounds(size)
    return Work(
        count + 2 * folded,
        (count + 2 * folded) * message_bytes,
        (count + folded) * message_bytes,
    )


def _rabenseifner(size: int, message_bytes: float) -> Work:
    """2 lg p a + 2 (p-1)/p n b + (p-1)/p n g, and 2 a + 2 n b + n g for other p.

    The halving is among the 2^floor(lg p) ranks that are left after folding.
    """
    count, folded = _rounds(size)
    share = (1 - 2.0**-count) * message_bytes
    return Work(
        2 * count + 2 * folded,
        2 * share + 2 * folded * message_bytes,
        share + folded * message_bytes,
    )


def _tree(size: int, message_bytes: float) -> Work:
    """ceil(lg p) (2 a + 2 n b + n g)."""
    depth = (size - 1).bit_length()
    return Work(2 * depth, 2 * depth * message_bytes, depth * message_bytes)


def _double_tree(size: int, message_bytes: float) -> Work:
    """2 lg p a + 2 n b + n g, and the time to fill the pipeline.

    With segments of s bytes, each further segment costs a, and lg p segments are sent and combined
    before the first one arrives; with the best s this is O(sqrt(n b a lg p)).
    """
    if size == 1:
        return Work(0, 0, 0)
    depth = (size - 1).bit_length()
    segments = max(1, -(-message_bytes // (2 * SEGMENT_BYTES)))
    filling = (depth - 1) * message_bytes / (2 * segments)
    return Work(
        2 * depth + 2 * (segments - 1),
        2 * message_bytes + 2 * filling,
        message_bytes + filling,
    )


def _rounds(size: int) -> tuple[int, int]:
    """floor(lg p) of a doubling or halving, and 1 for folding if p is not a power of two."""
    count = size.bit_length() - 1
    return count, int(size != 1 << count)


FORMULAS: dict[str, Callable[[int, float], Work]] = {
    "ring": _ring,
    "recursive_doubling": _recursive_doubling,
    "rabenseifner": _rabenseifner,
    "tree": _tree,
    "double_tree": _double_tree,
    # A ring's bytes and messages, all messages of a round in flight at once.
    "direct": _ring,
}
