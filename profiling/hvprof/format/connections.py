"""The TCP connections in a rank's signs of life, and the traffic between hosts over them."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hvprof.machine import Flow


@dataclass(frozen=True, slots=True)
class Connection:
    """A TCP connection of a rank to another host.

    Attributes:
        local, remote: IPv4 addresses.
        stuck_s: time since the peer last acknowledged some of the waiting data.
        waited_s: how long data has waited since a call was found to take long.
        again: number of segments resent since then.
        unsent_s: the part of `waited_s` in which no data was in flight although the peer would take
            more, because packets are dropped before they leave the host.
        queued_bytes: bytes given to the kernel and not acknowledged.
        delivered_bytes: bytes acknowledged while data waited.
        busy_s, resent, acked_bytes: totals since the connection began: time with unacknowledged
            data that the peer would take, segments resent, bytes acknowledged.
    """

    local: str
    remote: str
    stuck_s: float = 0.0
    waited_s: float = 0.0
    again: int = 0
    unsent_s: float = 0.0
    queued_bytes: int = 0
    delivered_bytes: int = 0
    busy_s: float = 0.0
    resent: int = 0
    acked_bytes: int = 0


class End(Protocol):
    """A rank with its connections."""

    @property
    def rank(self) -> int:
        """Its number."""

    @property
    def host(self) -> str:
        """Its host's name."""

    @property
    def addresses(self) -> Sequence[str]:
        """IPv4, at this end of its connections."""

    @property
    def connections(self) -> Sequence[Connection]:
        """Return the connections to other hosts."""


def connections_in(beat: np.void) -> tuple[Connection, ...]:
    """Return the connections that a sign of life lists."""
    return tuple(
        Connection(
            local=socket.inet_ntoa(bytes(one["local"])),
            remote=socket.inet_ntoa(bytes(one["remote"])),
            stuck_s=one["stuck_ms"].item() / 1e3,
            waited_s=one["waited_ms"].item() / 1e3,
            again=one["again"].item(),
            unsent_s=one["unsent_ms"].item() / 1e3,
            queued_bytes=one["queued_bytes"].item(),
            delivered_bytes=one["delivered_bytes"].item(),
            busy_s=one["busy_ms"].item() / 1e3,
            resent=one["resent"].item(),
            acked_bytes=one["acked_bytes"].item(),
        )
        for one in beat["connections"][: beat["count"].item()]
    )


def addresses_in(beat: np.void) -> tuple[str, ...]:
    """Return the addresses at this end of the connections."""
    given = (bytes(one) for one in beat["addresses"])
    return tuple(socket.inet_ntoa(one) for one in given if any(one))


def flows_between(ends: Iterable[End]) -> tuple[Flow, ...]:
    """Return the traffic of each rank to each other host of the job.

    Args:
        ends: the ranks. Connections to hosts without ranks, such as the launcher's, are left out.
    """
    ends = tuple(ends)
    host_of = {address: one.host for one in ends for address in one.addresses}
    found: dict[tuple[int, str, str], list[Connection]] = defaultdict(list)
    for one in ends:
        for connection in one.connections:
            there = host_of.get(connection.remote, one.host)
            if there != one.host:
                found[one.rank, one.host, there].append(connection)
    return tuple(
        Flow(
            rank=rank,
            host=host,
            to=there,
            # They are busy at the same time.
            busy_s=max(one.busy_s for one in some),
            acked_bytes=sum(one.acked_bytes for one in some),
            resent=sum(one.resent for one in some),
        )
        for (rank, host, there), some in found.items()
    )
