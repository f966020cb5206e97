"""The bytes that hvd_ext sent between hosts for the gradients that it reduced.

Uncompressed, a host sends 2 (h-1)/h n bytes of its sum of n bytes to the h-1 other hosts, divided
among its ranks. Both numbers include tuning: transport does not separate it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvprof.analysis.summary import Row
from hvprof.model import Recording


@dataclass(frozen=True, slots=True)
class BetweenHosts:
    """Bytes of all hosts together.

    Attributes:
        tensor_bytes: bytes that uncompressed gradients would take.
        wire_bytes: bytes that were sent.
    """

    tensor_bytes: float
    wire_bytes: float

    @property
    def ratio(self) -> float:
        """Return their ratio, which is below 1 if gradients were compressed."""
        return self.wire_bytes / self.tensor_bytes


def between_hosts(recording: Recording, rows: Mapping[str, Sequence[Row]]) -> BetweenHosts | None:
    """Return the bytes; None on one host, or if hvd_ext reduced nothing.

    Args:
        recording: recording of one job.
        rows: rows of each kind of traffic.
    """
    hosts = len({rank.host for rank in recording.ranks})
    passes = 2 * (hosts - 1) / hosts
    reduced = sum(
        row.message_bytes
        for traffic in ("data", "tuning")
        for row in rows[traffic]
        if row.operation == "allreduce" and row.algorithm != "native"
    )
    if hosts == 1 or not reduced:
        return None
    sends, sums = (
        sum(row.message_bytes for row in rows["transport"] if row.operation in operations)
        for operations in (("send", "isend"), ("allreduce",))
    )
    # A host's bytes are divided among its ranks.
    return BetweenHosts(passes * reduced * hosts / len(recording.ranks), sends + passes * sums)
