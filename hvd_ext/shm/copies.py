"""One call that copies many short pieces of memory, and one that hashes them."""

from __future__ import annotations

from array import array

from hvd_ext.shm.library import load_library


def copy_each(into: array[int], sources: array[int], lengths: array[int]) -> None:
    """Copy memory that does not overlap.

    Args:
        into: addresses; an array of type "Q", like the other two.
        sources: addresses, of the same count.
        lengths: as many lengths, in bytes.
    """
    load_library().copy_each(*map(_start, (into, sources, lengths)), len(into))


def digest_each(sources: array[int], lengths: array[int]) -> array[int]:
    """Compute a 64-bit hash of each piece of memory.

    A change of the bytes goes unnoticed with a probability of 2^-64.

    Args:
        sources: addresses; an array of type "Q".
        lengths: as many lengths in bytes; an array of type "Q".
    """
    digests = array("Q", bytes(8 * len(sources)))
    load_library().digest_each(*map(_start, (sources, lengths)), len(sources), _start(digests))
    return digests


def _start(values: array[int]) -> int:
    return values.buffer_info()[0]
