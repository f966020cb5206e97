"""Patterns that are known by name: the right one is said, and nobody is blamed for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hvprof.analysis.analysis import Analysis
from hvprof.model import Cell, Partner, RankRecording, Recording
from hvprof.reporters.verdict import verdict


def cell(operation: str, time_s: float, size: int = 4, message_bytes: int = 1 << 20) -> Cell:
    return Cell(
        operation=operation,
        algorithm="native",
        traffic="data",
        source="mpi",
        size=size,
        low_bytes=message_bytes,
        high_bytes=message_bytes,
        calls=100,
        message_bytes=100 * message_bytes,
        time_s=time_s,
        wait_s=None,
        min_s=time_s / 100,
        max_s=time_s / 100,
    )


def rank(number: int, cells: list[Cell], *partners: Partner) -> RankRecording:
    return RankRecording(
        number,
        4,
        "a",
        1,
        "finalized",
        100.0,
        110.0,
        1e-7,
        0,
        "",
        tuple(cells),
        partners=partners,
    )


def received(partner: int, messages: int, blocked_s: float) -> Partner:
    return Partner(partner, "from", messages, 8 * messages, blocked_s)


def sent(partner: int, messages: int, blocked_s: float = 0.0) -> Partner:
    return Partner(partner, "to", messages, 8 * messages, blocked_s)


# 100 exchanges of 256 MiB in 4 s take the memory of a host.
APART = [
    rank(n, [cell("alltoall", 4.0, 2, 1 << 26), cell("barrier", 0.1, 4, 0)]) for n in (0, 1)
] + [rank(n, [cell("barrier", 8.0, 4, 0)]) for n in (2, 3)]
PIECES = [
    rank(0, [cell("recv", 9.5)], *(received(n, 4, 3.0) for n in (1, 2, 3))),
    rank(1, [cell("recv", 5.0)], received(0, 4, 5.0), sent(0, 4)),
    rank(2, [cell("recv", 5.0)], received(0, 4, 5.0), sent(0, 4)),
    rank(3, [cell("recv", 0.5)], received(0, 5, 0.5), sent(0, 5)),
]
PIPELINE = [
    rank(0, [cell("allreduce", 3.0, 4, 8), cell("send", 0.1)]),
    *(
        rank(n, [cell("recv", 1.0 * n), cell("allreduce", 3.0 - n, 4, 8)], received(n - 1, 99, n))
        for n in (1, 2, 3)
    ),
]
SEND_CHAIN = [
    rank(0, [cell("send", 6.0)], sent(1, 99, 6.0)),
    rank(1, [cell("send", 4.0), cell("recv", 2.0)], sent(2, 99, 4.0), received(0, 99, 1.0)),
    rank(2, [cell("send", 2.0), cell("recv", 4.0)], sent(3, 99, 2.0), received(1, 99, 2.0)),
    rank(3, [cell("recv", 6.0)], received(2, 99, 3.0)),
]
# Receivers that are late by turns delay each sender as much.
LATE_BY_TURNS = [
    rank(n, [cell("send", 3.0), cell("recv", 3.0)], sent((n + 1) % 4, 99, 3.0)) for n in range(4)
]
DERIVED = [
    rank(n, [dataclasses.replace(cell("sendrecv", 4.7), datatype="derived 8 B")]) for n in range(4)
]


# Neither moves bytes; making communicators takes its time.
CALLS = [rank(n, [cell("comm_dup", 4.0, message_bytes=0)]) for n in range(4)]
ROOTS = [rank(n, [cell("bcast", 4.0, message_bytes=8)]) for n in range(4)]
# One rank hardly waits in broadcasts: it is their root, and waits for others elsewhere.
SAME_ROOT = [
    rank(0, [cell("bcast", 0.5, message_bytes=8), cell("allreduce", 4.0, message_bytes=8)]),
    *(
        rank(n, [cell("bcast", 4.0, message_bytes=8), cell("allreduce", 0.5, message_bytes=8)])
        for n in (1, 2, 3)
    ),
]
# Ranks that exchange data on their own, with 8 s outside of MPI in all: no work one after another.
APART_BRIEFLY = [
    rank(n, [cell("alltoall", 6.0, 2, 1 << 26), cell("barrier", 1.9, 4, 0)]) for n in (0, 1)
] + [rank(n, [cell("barrier", 7.9, 4, 0)]) for n in (2, 3)]


@pytest.mark.parametrize(
    ("ranks", "kind", "late", "said", "advice"),
    [
        (APART, "apart", (0, 1), "ranks 0 and 1, which exchange data among", "Let the others work"),
        (APART_BRIEFLY, "apart", (0, 1), "ranks 0 and 1, which exchange", "Let the others work"),
        (CALLS, "calls", (), "100 calls of comm_dup take most of it", "Call comm_dup less often"),
        (ROOTS, "roots", (), "the root of bcast, which is another one", "(MPI_Ibcast)"),
        (SAME_ROOT, "turns", (), "a different one each time", "Wait less often"),
        (PIECES, "pieces", (), "hands out few pieces of work", "Hand out more and smaller pieces"),
        (PIPELINE, "pipeline", (), "this pipeline fills and drains", "microbatches"),
        (SEND_CHAIN, "send chain", (), "sends to the next one before it", "Start all messages"),
        (LATE_BY_TURNS, "turns", (), "a different one each time", "Wait less often"),
        (DERIVED, "derived type", (), "packing it takes longer", "contiguous memory"),
    ],
)
def test_a_pattern_is_named(
    ranks: list[RankRecording], kind: str, late: tuple[int, ...], said: str, advice: str
) -> None:
    analysis = Analysis(Recording(Path("a"), tuple(ranks)))
    assert analysis.cause is not None
    assert (analysis.cause.kind.value, analysis.cause.ranks) == (kind, late)
    assert said in verdict(analysis)
    assert advice in analysis.advice[0].title
