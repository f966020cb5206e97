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
    """Least sizes and algorithms: what a size takes holds up to the next measured size.

    A size takes the fastest of those that beat the usual one there and at a neighboring size.
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
    """The row of one situation, with the medians that it rests on."""
    measured = tuple(
        (size, {name: statistics.median(times) * 1e6 for name, times in samples[size].items()})
        for size in sorted(samples)
    )
    return Row(nodes, ranks_per_node, memory, choices(samples, usual), dtype_class, measured)


def merge(new: Sequence[Row], old: Sequence[Row]) -> tuple[Row, ...]:
    """New rows first; old ones stay where no new one is for the same situation."""
    taken = {(row.nodes, row.ranks_per_node, row.memory) for row in new}
    kept = [row for row in old if (row.nodes, row.ranks_per_node, row.memory) not in taken]
    return (*new, *kept)
