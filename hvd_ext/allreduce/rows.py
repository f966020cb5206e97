"""From samples to rows of a table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from hvd_ext.allreduce.algorithms import NATIVE
from hvd_ext.allreduce.table import Choices, Row
from hvd_ext.arithmetic.statistics import gain, lasting

# In s, by message_bytes, then by algorithm; samples of one round were taken together.
Samples = Mapping[int, Mapping[str, Sequence[float]]]


def choices(samples: Samples, usual: str = NATIVE) -> Choices:
    """Return least sizes and algorithms; each choice is valid up to the next measured size.

    A size gets the fastest algorithm that beat the usual one at this size and at a neighboring one.
    """
    sizes = sorted(samples)
    gains = [
        {
            name: gain(samples[size][usual], times)
            for name, times in samples[size].items()
            if name != usual
        }
        for size in sizes
    ]
    found: list[tuple[int, str]] = []
    for message_bytes, left in zip(sizes, lasting(gains), strict=True):
        name = max(sorted(left), key=left.__getitem__, default=usual)
        if not found or name != found[-1][1]:
            found.append((message_bytes if found else 0, name))
    return tuple(found)


def make_row(
    nodes: int,
    ranks_per_node: int,
    memory: str,
    dtype_class: str,
    samples: Samples,
    usual: str = NATIVE,
) -> Row:
    """Return the row of one situation, with the medians that decided it."""
    measured = tuple(
        (size, {name: statistics.median(times) * 1e6 for name, times in samples[size].items()})
        for size in sorted(samples)
    )
    return Row(nodes, ranks_per_node, memory, choices(samples, usual), dtype_class, measured)


def merge(new: Sequence[Row], old: Sequence[Row]) -> tuple[Row, ...]:
    """Return the new rows, then the old ones whose situations no new row is for."""
    taken = {(row.nodes, row.ranks_per_node, row.memory) for row in new}
    kept = [row for row in old if (row.nodes, row.ranks_per_node, row.memory) not in taken]
    return (*new, *kept)
