"""Machines that give a job too little: slow links, lost packets, quotas, clocks, cores."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from hvprof.analysis.conditions import Condition, conditions, slow_cores
from hvprof.analysis.waiting.slowness import Pace, reason
from hvprof.format.connections import Connection, flows_between
from hvprof.machine import Flow, Machine
from hvprof.model import Step

MIB = 1 << 20
TIME_S = 10.0


@dataclass(frozen=True)
class Rank:
    rank: int
    host: str
    machine: Machine | None = None
    queued_s: float = 0.0


def on_hosts(count: int, ranks_per_host: int = 1) -> list[Rank]:
    return [Rank(rank, f"node{rank // ranks_per_host}") for rank in range(count * ranks_per_host)]


def ring(count: int, slow: int | None = None, busy_s: float = 1.0) -> list[Flow]:
    """Each host sends 100 MiB to the next; on a slow host's link that takes ten times as long."""
    return [
        Flow(
            rank=host,
            host=f"node{host}",
            to=f"node{(host + 1) % count}",
            busy_s=busy_s * (10 if slow in (host, (host + 1) % count) else 1),
            acked_bytes=100 * MIB,
            resent=0,
        )
        for host in range(count)
    ]


def only(ranks: list[Rank], flows: list[Flow]) -> Condition:
    (found,) = conditions(ranks, flows, TIME_S)
    return found


@pytest.mark.parametrize("slow", range(4))
def test_the_host_with_a_slow_link_is_named_and_not_its_neighbours(slow: int) -> None:
    found = only(on_hosts(4, 2), ring(4, slow))
    assert (found.kind, found.hosts) == ("link", (f"node{slow}",))
    assert found.ranks == (2 * slow, 2 * slow + 1)
    assert f"the link of node{slow} delivers 10 MiB a second while data wait" in found.what
    assert "those of the others 100 MiB a second" in found.what
    assert found.share == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("ranks", "flows"),
    [
        (on_hosts(4), ring(4)),
        (on_hosts(2), ring(2, 1)),  # of two hosts neither is the slow one
        (on_hosts(4), ring(4, 1, busy_s=0.05)),  # it holds nobody up
        (on_hosts(4), []),
    ],
    ids=["even", "two hosts", "seldom busy", "no connections"],
)
def test_links_without_fault_are_not_blamed(ranks: list[Rank], flows: list[Flow]) -> None:
    assert conditions(ranks, flows, TIME_S) == []


@pytest.mark.parametrize(("queued_s", "named"), [(4.0, True), (8.5, False), (20.0, False)])
def test_a_link_is_slow_only_if_its_ranks_did_not_wait_for_a_core(
    queued_s: float, named: bool
) -> None:
    ranks = [replace(one, queued_s=queued_s * (one.rank == 2)) for one in on_hosts(4)]
    assert [one.hosts for one in conditions(ranks, ring(4, 2), TIME_S)] == [("node2",)] * named


def test_short_messages_to_one_host_do_not_make_its_link_slow() -> None:
    all_to_all = [
        Flow(a, f"node{a}", f"node{b}", 1.0, 100 * MIB, 0)
        for a in range(4)
        for b in range(4)
        if a != b and 3 not in (a, b)
    ]
    to_the_last = [Flow(a, f"node{a}", "node3", 2.0, MIB, 0) for a in range(3)]
    assert conditions(on_hosts(4), [*all_to_all, *to_the_last], TIME_S) == []


def lossy(*pairs: tuple[int, int, int]) -> list[Flow]:
    return [
        Flow(a, f"node{a}", f"node{b}", 5.0, 100 * MIB, resent)
        for a, b, resent in ((0, 1, 0), (1, 2, 0), (2, 3, 0), (3, 0, 0), *pairs)
    ]


@pytest.mark.parametrize(
    ("pairs", "hosts"),
    [
        ([(2, 3, 2000), (3, 0, 1500)], ("node3",)),
        ([(2, 3, 2000)], ("node2", "node3")),
        ([(2, 3, 2000), (0, 1, 1500)], ("node2", "node3")),
    ],
    ids=["a host", "a pair", "two pairs"],
)
def test_a_link_that_loses_packets_is_named(
    pairs: list[tuple[int, int, int]], hosts: tuple[str, ...]
) -> None:
    found = only(on_hosts(4), lossy(*pairs))
    assert found.hosts == hosts
    assert "loses packets" in found.what


def test_of_two_hosts_that_lose_packets_the_one_with_the_slow_link_is_named() -> None:
    flows = [replace(one, resent=2000) if one.to == "node3" else one for one in ring(4, 3)]
    found = only(on_hosts(4), flows)
    assert found.hosts == ("node3",)
    assert found.what == (
        "the link of node3 loses packets (2,000 were sent again) and delivers 10 MiB a second "
        "while data wait, those of the others 100 MiB a second"
    )


def test_few_packets_may_be_lost() -> None:
    assert conditions(on_hosts(4), lossy((2, 3, 100)), TIME_S) == []


def machine(**facts: float) -> Machine:
    given = {"looks": 5, "ghz_sum": 15.0, **facts}
    return Machine(**given)  # type: ignore[arg-type]


def test_a_quota_that_ran_out_is_named_with_its_cores() -> None:
    held = machine(periods=100, throttled=83, quota_cores=1.5)
    healthy = machine(periods=100, throttled=4, quota_cores=1.5)
    ranks = [Rank(0, "a", healthy), Rank(1, "b", held), Rank(2, "b", held)]
    found = only(ranks, [])
    assert (found.kind, found.hosts, found.ranks) == ("quota", ("b",), (1, 2))
    assert found.what == "the CPU quota of 1.5 cores on b ran out in 83 % of its periods"


def test_a_clock_that_is_held_down_is_named() -> None:
    ranks = [Rank(0, "a", machine()), Rank(1, "b", machine(ghz_sum=7.0))]
    found = only(ranks, [])
    assert (found.kind, found.hosts, found.ranks) == ("clock", ("b",), (1,))
    assert found.what == "the cores of b run at 1.4 GHz, those of the fastest host at 3.0"
    assert conditions([Rank(0, "a", None), Rank(1, "b", machine(looks=1))], [], TIME_S) == []


def on_cores(*trial_us: float) -> list[Rank]:
    return [
        Rank(
            number, f"node{number // 2}", machine(trials=100, tried_s=5.0, trials_s2=5e-6 * took_us)
        )
        for number, took_us in enumerate(trial_us)
    ]


def test_cores_that_explain_that_ranks_take_longer_are_named() -> None:
    found = slow_cores(on_cores(0.7, 0.7, 0.7, 0.91), [3], 1.5)
    assert found is not None
    assert (found.kind, found.hosts, found.ranks) == ("core", ("node1",), (3,))
    assert found.what == (
        "the core of rank 3 on node1 takes 30 % longer than the others' for the same work"
    )
    assert found.share == pytest.approx(1 - 1 / 1.3)
    both = slow_cores(on_cores(1, 1, 1.3, 1.3), [2, 3], 1.2)
    assert both is not None
    assert "the cores of ranks 2 and 3 on node1 take 30 %" in both.what


FEW = machine(trials=19, tried_s=1.0, trials_s2=1e-6)
DAMAGED = machine(trials=100, tried_s=0.0, trials_s2=1e-6)


@pytest.mark.parametrize(
    ("ranks", "longer"),
    [
        (on_cores(0.7, 0.7, 0.7, 0.91), 1.51),  # explains less than six tenths of it
        (on_cores(0.7, 0.7, 0.7, 0.72), 1.01),  # equal cores
        ([*on_cores(0.7, 0.7, 0.7), Rank(3, "b", FEW)], 1.1),
        ([*on_cores(0.7, 0.7, 0.7), Rank(3, "b", DAMAGED)], 1.1),
        ([*on_cores(0.7, 0.7), Rank(2, "b", None), *on_cores(1, 1, 1, 1)[3:]], 1.1),
        (on_cores(1, 1, 1, 1)[3:], 1.1),  # no other rank
    ],
)
def test_cores_that_explain_less_or_are_unknown_are_not_named(
    ranks: list[Rank], longer: float
) -> None:
    assert slow_cores(ranks, [3], longer) is None


def test_a_slow_rank_has_its_reason_from_its_core() -> None:
    none = dict.fromkeys(("overlapped_s", "io_s", "other_s"), 0.0)
    step = Step(10, 0.0, 0.2, compute_s=0.15, exposed_s=0.05, queued_s=0.0, **none)
    slow = Step(10, 0.0, 0.2, compute_s=0.2, exposed_s=0.0, queued_s=0.0, **none)
    for took_us, look in ((1.4, "takes 40 % longer"), (1.0, "more work, or a slower core")):
        (first, second) = (one.machine for one in on_cores(1.0, took_us))
        paces = [Pace(0, "a", step, 0.75, first), Pace(1, "a", slow, 1.0, second)]
        assert look in str(reason(1, paces))


def test_a_slow_rank_has_its_reason_from_its_machine() -> None:
    held = machine(periods=100, throttled=83, quota_cores=1.5)
    known = conditions([Rank(0, "a"), Rank(1, "a", held)], [], TIME_S)
    none = dict.fromkeys(("overlapped_s", "io_s", "other_s"), 0.0)
    waits = Step(10, 0.0, 0.2, compute_s=0.1, exposed_s=0.1, queued_s=0.0, **none)
    slow = Step(10, 0.0, 0.2, compute_s=0.2, exposed_s=0.0, queued_s=0.1, **none)
    paces = [Pace(0, "a", waits, 0.5), Pace(1, "a", slow, 1.0)]
    assert "other processes or threads share its cores" in str(reason(1, paces))
    assert "the CPU quota of 1.5 cores on a ran out" in str(reason(1, paces, known))


def test_looks_and_flows_are_counted_between_two_readings() -> None:
    now = machine(looks=8, ghz_sum=22.0, periods=120, throttled=40, trials=90, tried_s=9.0)
    before = machine(periods=100, throttled=30, trials=50, tried_s=5.0)
    assert now.since(before) == machine(
        looks=3, ghz_sum=7.0, periods=20, throttled=10, trials=40, tried_s=4.0
    )
    assert now.since(machine()).clock_ghz == pytest.approx(7 / 3)


@dataclass(frozen=True)
class End:
    rank: int
    host: str
    addresses: tuple[str, ...]
    connections: tuple[Connection, ...]


def test_connections_to_hosts_without_ranks_are_no_flows() -> None:
    to_b = Connection("10.0.0.1", "10.0.0.2", busy_s=2.0, resent=3, acked_bytes=10)
    ends = [
        End(0, "a", ("10.0.0.1",), (to_b, to_b, Connection("10.0.0.1", "10.0.0.9"))),
        End(1, "b", ("10.0.0.2",), (Connection("10.0.0.2", "10.0.0.2"),)),
    ]
    assert flows_between(ends) == (Flow(0, "a", "b", busy_s=2.0, acked_bytes=20, resent=6),)
