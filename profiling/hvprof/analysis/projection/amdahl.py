"""The share of work that more ranks do not speed up."""

from __future__ import annotations


def karp_flatt(speedup: float, factor: float) -> float:
    """The serial share that explains a speedup from `factor` times the ranks.

    A share that is the same at all sizes is serial work; one that grows with the size is overhead
    (Karp and Flatt, "Measuring Parallel Processor Performance", CACM 33, 1990). It is below 0 where
    the speedup is more than ideal.
    """
    return (1 / speedup - 1 / factor) / (1 - 1 / factor)
