"""Many short copies by one call."""

from __future__ import annotations

from array import array

from hvd_ext.shm.library import load_library


def copy_each(into: array[int], sources: array[int], lengths: array[int]) -> None:
    """Copy memory that does not overlap.

    Args:
        into: addresses; an array of type "Q", as the others.
        sources: addresses, as many.
        lengths: in bytes, as many.
    """
    places = (each.buffer_info()[0] for each in (into, sources, lengths))
    load_library().copy_each(*places, len(into))
