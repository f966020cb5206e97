"""Slow machines of a job: the speed of a link, a CPU quota, the clock and the speed of a core.

hvprof watch looks at the time between two readings, the report and its advice at the whole run.

The speed of a pair of hosts is its bytes over the time that data waited for delivery. A slow link
slows every pair that its host is part of, and no other pair. So each host gets the speed of its
fastest pair, and a host whose speed is far below the others' has the slow link. That takes three
hosts. Data also wait while a rank at an end of the link waits for a core. The time by which it
waits longer than the other hosts' ranks is subtracted before a link counts as slow.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple, Protocol

from hvd_ext.units import format_bytes, plural
from hvprof.analysis.causes.kinds import ranks_text
from hvprof.machine import Flow, Machine

# A link's speed counts if data waited for it for this share of the time.
_LEAST_BUSY = 0.1
# A pair with less than this share of another pair's bytes has mostly short messages.
_LEAST_BYTES, _SLOW_LINK = 0.1, 0.5
# Fewer bytes than this give no reliable speed.
_LEAST_SPEED_BYTES = 1 << 20
_SEGMENT_BYTES, _LOST_SHARE, _MOST = 1448, 0.01, 0.8
# The quota ran out in this share of its periods. A clock is slow below this share of the fastest
# host's; less than that may be due to the number of busy cores.
_HELD_BACK, _SLOW_CLOCK = 0.1, 0.7
_LEAST_PERIODS, _LEAST_LOOKS = 10, 2
# The least factor by which a core is slower than another, and the share of a rank's lateness that
# it must explain: whatever slows a core does not slow all work alike.
_SLOW_CORE, _MOSTLY = 1.03, 0.6


class OnCore(Protocol):
    """A rank, its host, and its machine's counters."""

    @property
    def rank(self) -> int:
        """Its number."""

    @property
    def host(self) -> str:
        """Its host's name."""

    @property
    def machine(self) -> Machine | None:
        """Return it for a whole run, or between two readings; None if unknown."""


class Placed(OnCore, Protocol):
    """The same, and its wait for a core."""

    @property
    def queued_s(self) -> float:
        """Return how long it waited for a core in that time; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a machine that slows a job.

    Attributes:
        kind: "link", "quota", "clock" or "core".
        hosts: its hosts; links between two hosts belong to both.
        ranks: ranks on these hosts.
        what: description, which begins with the kind.
        look: what to do.
        share: largest share of the time that it costs.
    """

    kind: str
    hosts: tuple[str, ...]
    ranks: tuple[int, ...]
    what: str
    look: str
    share: float

    def __str__(self) -> str:
        return f"{self.what}: {self.look}"


@dataclass(frozen=True, slots=True)
class _Pair:
    busy_s: float
    acked_bytes: int
    resent: int
    queued_s: float

    @property
    def speed(self) -> float:
        """Return the bytes a second while data waited."""
        return self.acked_bytes / self.busy_s if self.busy_s else 0.0

    @property
    def most_speed(self) -> float:
        """Return the same, assuming that every wait for a core kept data waiting."""
        by_link_s = self.busy_s - self.queued_s
        return self.acked_bytes / by_link_s if by_link_s > 0 else math.inf

    @property
    def loses(self) -> bool:
        return self.resent * _SEGMENT_BYTES >= _LOST_SHARE * max(self.acked_bytes, 1)


def conditions(ranks: Sequence[Placed], flows: Sequence[Flow], time_s: float) -> list[Condition]:
    """Return the conditions of a job's machines, the most costly first.

    Args:
        ranks: ranks of the job.
        flows: traffic between their hosts.
        time_s: time of these counters.
    """
    found = [*_links(ranks, flows, time_s), *_quotas(ranks), *_clocks(ranks)]
    return sorted(found, key=lambda one: -one.share)


def _links(ranks: Sequence[Placed], flows: Sequence[Flow], time_s: float) -> Iterator[Condition]:
    pairs = _pairs(ranks, flows, time_s)
    # A pair on which data rarely wait delays no rank.
    busy = {hosts: one for hosts, one in pairs.items() if one.busy_s >= _LEAST_BUSY * time_s > 0}
    lossy = {hosts: one for hosts, one in busy.items() if one.loses}
    slow = _slow_host(pairs)
    if slow and not any(slow.host in hosts for hosts in busy):
        slow = None
    if not (slow or lossy):
        return
    named: tuple[str, ...] = (slow.host,) if slow else _losing(lossy)
    resent = sum(one.resent for hosts, one in lossy.items() if {*named} & {*hosts})
    said, look = [], "look at its speed (ethtool), its cable and its switch's port"
    if resent:
        said.append(f"loses packets ({resent:,} were sent again)")
        look = "look at its cable, its switch's port and its queues (tc -s qdisc, ethtool -S)"
    if slow:
        others = f"those of the others {_speed(slow.others)}"
        said.append(f"delivers {_speed(slow.speed)} while data wait, {others}")
    waited_s = max(one.busy_s for hosts, one in busy.items() if {*named} & {*hosts})
    yield Condition(
        "link",
        named,
        tuple(sorted(one.rank for one in ranks if one.host in named)),
        f"{_link_of(named)} {' and '.join(said)}",
        look,
        waited_s / time_s * (1 - slow.speed / slow.others if slow else 1),
    )


def _pairs(
    ranks: Sequence[Placed], flows: Sequence[Flow], time_s: float
) -> dict[tuple[str, str], _Pair]:
    """Return the traffic from one host to another, of all their ranks, which run in parallel."""
    queued_s: dict[str, float] = defaultdict(float)
    for rank in ranks:
        queued_s[rank.host] = max(queued_s[rank.host], rank.queued_s)
    # If all ranks wait equally long for cores, that does not make a single link slower.
    least_s = min(queued_s.values(), default=0.0)
    grouped: dict[tuple[str, str], list[Flow]] = defaultdict(list)
    for flow in flows:
        grouped[flow.host, flow.to].append(flow)
    return {
        hosts: _Pair(
            busy_s=min(max(one.busy_s for one in some), time_s),
            acked_bytes=sum(one.acked_bytes for one in some),
            resent=sum(one.resent for one in some),
            queued_s=sum(queued_s[host] - least_s for host in hosts if host in queued_s),
        )
        for hosts, some in grouped.items()
    }


class _Slow(NamedTuple):
    """Return the host with the slow link, its speed and that of the others, in bytes a second."""

    host: str
    speed: float
    others: float


def _slow_host(pairs: Mapping[tuple[str, str], _Pair]) -> _Slow | None:
    """Return the host with a slow link; None without one."""
    most = max((one.acked_bytes for one in pairs.values()), default=0)
    best: dict[str, float] = defaultdict(float)
    at_most: dict[str, float] = defaultdict(float)
    for hosts, one in pairs.items():
        if one.acked_bytes >= _LEAST_BYTES * most:
            for host in hosts:
                best[host] = max(best[host], one.speed)
                at_most[host] = max(at_most[host], one.most_speed)
    if len(best) < 3 or most < _LEAST_SPEED_BYTES:
        return None
    slowest = min(at_most, key=at_most.__getitem__)
    others = median(speed for host, speed in best.items() if host != slowest)
    slow = at_most[slowest] < _SLOW_LINK * others
    return _Slow(slowest, best[slowest], others) if slow else None


def _losing(lossy: Mapping[tuple[str, str], _Pair]) -> tuple[str, ...]:
    """Return the host that is part of most losses, or else the pair that loses most."""
    of_host: dict[str, int] = defaultdict(int)
    for hosts, one in lossy.items():
        for host in hosts:
            of_host[host] += one.resent
    order = sorted(of_host, key=lambda host: -of_host[host])
    total = sum(one.resent for one in lossy.values())
    if of_host[order[1]] < _MOST * total <= of_host[order[0]]:
        return (order[0],)
    most = max(lossy, key=lambda pair: lossy[pair].resent)
    return tuple(sorted(most))


def _link_of(hosts: tuple[str, ...]) -> str:
    return f"the link {'of' if len(hosts) == 1 else 'between'} {' and '.join(hosts)}"


def _speed(bytes_s: float) -> str:
    return f"{format_bytes(round(bytes_s))} a second"


def _quotas(ranks: Sequence[Placed]) -> Iterator[Condition]:
    """Return the hosts on which the quota ran out. The ranks of a control group share counters."""
    worst: dict[str, tuple[float, Machine]] = {}
    limited: dict[str, list[int]] = defaultdict(list)
    for one in ranks:
        machine = one.machine
        if machine is None or machine.periods < _LEAST_PERIODS:
            continue
        share = machine.throttled / machine.periods
        if share >= _HELD_BACK:
            limited[one.host].append(one.rank)
            worst[one.host] = max(worst.get(one.host, (0.0, machine)), (share, machine), key=_first)
    for host, (share, machine) in worst.items():
        cores = (
            f" of {machine.quota_cores:g} {plural(machine.quota_cores, 'core')}"
            if machine.quota_cores
            else ""
        )
        yield Condition(
            "quota",
            (host,),
            tuple(limited[host]),
            f"the CPU quota{cores} on {host} ran out in {100 * share:.0f} % of its periods",
            "raise the limit of the container or job (cpu.max), or start fewer threads",
            share,
        )


def _first(pair: tuple[float, Machine]) -> float:
    return pair[0]


def _clocks(ranks: Sequence[Placed]) -> Iterator[Condition]:
    """Return the hosts whose clock is far below that of the fastest host."""
    on: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for one in ranks:
        if one.machine is not None and one.machine.looks >= _LEAST_LOOKS:
            on[one.host].append((one.machine.clock_ghz, one.rank))
    clocks = {host: median(ghz for ghz, _ in some) for host, some in on.items()}
    best_ghz = max(clocks.values(), default=0.0)
    for host, ghz in clocks.items():
        if ghz < _SLOW_CLOCK * best_ghz:
            yield Condition(
                "clock",
                (host,),
                tuple(rank for _, rank in on[host]),
                f"the cores of {host} run at {ghz:.1f} GHz, those of the fastest host at "
                f"{best_ghz:.1f}",
                "look for heat, a power limit or another governor (turbostat, cpupower)",
                1 - ghz / best_ghz,
            )


def slow_cores(ranks: Sequence[OnCore], late: Collection[int], longer: float) -> Condition | None:
    """Return the condition that makes ranks late; None if their cores explain less than most of it.

    Args:
        ranks: ranks of the job.
        late: numbers of those that are late.
        longer: factor by which they take longer than the others.
    """
    here = [one for one in ranks if one.rank in late]
    others = [one for one in ranks if one.rank not in late]
    trials_s, of_others_s = (
        [one.machine.trial_s if one.machine else 0.0 for one in some] for some in (here, others)
    )
    if not (here and others and min(*trials_s, *of_others_s) > 0):
        return None
    ratio = fmean(trials_s) / fmean(of_others_s)
    if ratio < _SLOW_CORE or ratio - 1 < _MOSTLY * (longer - 1):
        return None
    hosts = tuple(dict.fromkeys(one.host for one in here))
    takes = "takes" if len(here) == 1 else "take"
    return Condition(
        "core",
        hosts,
        tuple(one.rank for one in here),
        f"the {plural(len(here), 'core')} of {ranks_text([one.rank for one in here])} on "
        f"{' and '.join(hosts)} {takes} {100 * ratio - 100:.0f} % longer than the others' for the "
        "same work",
        "look for heat, a power limit, or another program on the other hyperthread of the core; "
        "on a virtual machine, on its host",
        1 - 1 / ratio,
    )
