"""The collective operations, by the ranks that wait in them."""

from __future__ import annotations

# All ranks wait only for the root.
FROM_ROOT = frozenset({"bcast", "scatter", "scatterv"})
# Ranks have different parts, and need different times without anyone being late.
UNEVEN = frozenset({"reduce", "scan", "exscan", "gather", "gatherv", "scatter", "scatterv"})
COLLECTIVES = (
    FROM_ROOT
    | UNEVEN
    | {
        *("allreduce", "allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw"),
        *("reduce_scatter", "reduce_scatter_block", "barrier"),
    }
)
