"""The host whose link delays a collective, from connections with undelivered data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_ext.units import format_bytes
from hvprof.format.connections import Connection
from hvprof.live import words
from hvprof.live.standing import Standing

_STUCK_S = 1.0
# The share of resent segments on a link that loses some, and how long data waited then.
_SEGMENT_BYTES, _LOST_SHARE, _LOST_S = 1448, 0.01, 0.5
# If the host's own queue drops packets, no data is in flight for most of the time.
_UNSENT_SHARE = 0.5
# Data wait for a moment on any link.
_MUCH, _MOST, _ALIKE = 0.1, 0.8, 0.95
# Data that waits at the first reading counts as waiting until the next one.
_QUEUED_BYTES, _LOOK_S = 64 << 10, 0.25


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Links that delay ranks.

    Attributes:
        ranks: ranks on their hosts.
        sentence: the links and their problem, in words.
    """

    ranks: tuple[int, ...]
    sentence: str


def slow_link(standings: Sequence[Standing]) -> SlowLink | None:
    """Find the host, or the two hosts, between which data wait; None if no data wait."""
    host_of = {address: one.host for one in standings for address in one.addresses}
    between: dict[tuple[str, str], list[Connection]] = defaultdict(list)
    for one in standings:
        for connection in one.connections:
            there = host_of.get(connection.remote, connection.remote)
            if there != one.host:
                between[one.host, there].append(connection)
    without = sorted({one.host for one in standings if one.without_carrier and one.host})
    dropping = sorted({here for (here, _), some in between.items() if any(map(_is_dropped, some))})
    hosts = without or (dropping if len(dropping) == 1 else _blamed(between))
    found = [c for pair, some in between.items() if {*hosts} & {*pair} for c in some]
    if not hosts or not (found or without):
        return None
    ranks = tuple(one.rank for one in standings if one.host in hosts)
    interfaces = sorted({one.without_carrier for one in standings if one.without_carrier})
    name = f"the link {'of' if len(hosts) == 1 else 'between'} {' and '.join(hosts)}"
    if without:
        why = f"has no carrier ({', '.join(interfaces)}): look at its cable and its switch"
    else:
        why = _condition(found, dropping)
    return SlowLink(ranks, f"{name} {why}")


def _blamed(between: dict[tuple[str, str], list[Connection]]) -> list[str]:
    """Return the host that is part of most waits; both hosts if it is a single pair."""
    stuck = {pair: some for pair, some in between.items() if any(map(_is_stuck, some))}
    lossy = {pair: some for pair, some in between.items() if _loses(some)}
    worst = stuck or lossy or between
    waited_s = {pair: max(map(_waited_s, some), default=0.0) for pair, some in worst.items()}
    limit_s = _MUCH * max(waited_s.values(), default=0.0)
    long_s = {pair: value for pair, value in waited_s.items() if value > limit_s}
    of_host: dict[str, float] = defaultdict(float)
    for pair, value in long_s.items():
        for host in pair:
            of_host[host] += value
    best = max(of_host.values(), default=0.0)
    if best < _MOST * sum(long_s.values()):
        return []
    return sorted(host for host, value in of_host.items() if value >= _ALIKE * best)


def _waited_s(one: Connection) -> float:
    return one.waited_s + _LOOK_S * (one.queued_bytes >= _QUEUED_BYTES)


def _is_stuck(one: Connection) -> bool:
    return one.queued_bytes > 0 and one.stuck_s >= _STUCK_S


def _is_dropped(one: Connection) -> bool:
    return one.unsent_s >= max(_LOST_S, _UNSENT_SHARE * one.waited_s)


def _loses(found: Sequence[Connection]) -> bool:
    again = sum(one.again for one in found)
    delivered_bytes = sum(one.delivered_bytes for one in found)
    waited_s = max(one.waited_s for one in found)
    many = again * _SEGMENT_BYTES >= _LOST_SHARE * delivered_bytes
    return again > 0 and many and waited_s >= _LOST_S


def _condition(found: Sequence[Connection], dropping: Sequence[str]) -> str:
    queued = [one for one in found if one.queued_bytes]
    if queued and all(map(_is_stuck, queued)):
        stuck_s = min(one.stuck_s for one in queued)
        said = f"has delivered nothing for {words.seconds(stuck_s)}"
    else:
        speeds = (one.delivered_bytes / one.waited_s for one in found if one.waited_s)
        said = f"delivers {format_bytes(round(max(speeds, default=0.0)))} a second"
    again = sum(one.again for one in found)
    lost = [f"{again} segments were sent again"] if _loses(found) else []
    if dropping:
        lost.append(f"a queue on {' and '.join(dropping)} drops them (tc -s qdisc)")
    if lost:
        said += f" and loses packets: {', '.join(lost)}"
    waits = sum(one.queued_bytes for one in queued)
    return f"{said}; {format_bytes(waits)} wait for it" if waits else said
