"""How many bytes hvd_ext sent between hosts for the gradients that it reduced.

Sent as they are, a host's sum of n bytes takes 2 (h-1)/h n from it to the h-1 others,
shared by its ranks. Both numbers include tuning: transport does not separate it.
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
        tensor_bytes: what would have been sent of the gradients as they are.
        wire_bytes: what was sent.
    """

    tensor_bytes: float
    wire_bytes: float

    @property
    def ratio(self) -> float:
        """Below 1 where gradients were compressed."""
        return self.wire_bytes / self.tensor_bytes


def between_hosts(recording: Recording, rows: Mapping[str, Sequence[Row]]) -> BetweenHosts | None:
    """The bytes, or None on one host and where hvd_ext reduced nothing.

    Args:
        recording: of one job.
        rows: of each kind of traffic.
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
    # The ranks of a host share what it sends.
    return BetweenHosts(passes * reduced * hosts / len(recording.ranks), sends + passes * sums)
