"""Bandwidths of a collective, after nccl-tests (doc/PERFORMANCE.md).

algbw is what the caller sees: the payload over the time. busbw is what the
busiest link sees: an allreduce of S bytes over n ranks cannot be done with less
than 2 (n-1)/n S bytes in and out of every rank, so algbw times that factor can be compared with the
speed of the hardware, for any n.
"""

from __future__ import annotations

from hvd_ext.units import GB


def algbw_gb_s(message_bytes: int, time_s: float) -> float:
    """Payload per rank over time, in decimal GB/s (0 for a time of 0)."""
    return message_bytes / time_s / GB if time_s > 0 else 0.0


def bus_factor(operation: str, size: int) -> float:
    """Bytes each rank must send per byte of payload.

    Args:
        operation: lower-case name of the collective, such as "allreduce".
        size: number of ranks.
    """
    share = (size - 1) / size
    if operation == "allreduce":
        return 2 * share
    if operation in ("reduce_scatter", "allgather", "alltoall"):
        return share
    return 1.0


def busbw_gb_s(operation: str, message_bytes: int, time_s: float, size: int) -> float:
    """Bus bandwidth in decimal GB/s."""
    return algbw_gb_s(message_bytes, time_s) * bus_factor(operation, size)
