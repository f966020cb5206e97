"""Which ranks waited for which, from traces that are made here. No ranks."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hvprof
from hvprof.analysis.waiting.wait_time import Waiting, waiting
from hvprof.format.bins import bin_edges
from hvprof.format.key import Key, encode
from hvprof.format.layout import EVENT, VERSION
from hvprof.format.trace import load_trace
from hvprof.format.writer import write_rank
from hvprof.model import Cell, ClockOffset, Communicator, RankRecording

MS = 1_000_000
OPERATIONS = ("allreduce", "bcast", "isend", "iallreduce")
# Entries of the file; hvd_ext names no communicator.
OWN, WORLD, PAIR = 0, 1, 2

# (operation, communicator, sequence, begin in ms, end in ms, peer)
Call = tuple[str, int, int, float, float, int]


def put(
    directory: Path,
    ranks: list[list[Call]],
    *,
    offsets: dict[int, tuple[ClockOffset, ...]] | None = None,
    shift_ms: dict[int, float] | None = None,
    wait_ms: float = 0,
) -> hvprof.Recording:
    """A recording whose ranks have these calls in their traces.

    Args:
        offsets: of ranks that have a clock of their own.
        shift_ms: what such a clock is ahead.
        wait_ms: what hvd_ext measured in its own calls.
    """
    directory.mkdir()
    size = len(ranks)
    for number, calls in enumerate(ranks):
        own_clock = number in (offsets or {})
        communicators = (
            Communicator("00000000000000a1", size, "MPI_COMM_WORLD", "", number),
            # Ranks 1 and 2 in the other order.
            Communicator("00000000000000b3", 2, "", "", 2 - number),
        )
        write_rank(
            directory,
            RankRecording(
                rank=number,
                size=size,
                host="node",
                pid=1,
                state="finalized",
                start_unix_s=100.0,
                end_unix_s=None,
                recorder_cost_s=0.0,
                dropped_calls=0,
                mpi_library="",
                cells=tuple(cells(calls, size)),
                communicators=communicators,
                trace_capacity=len(calls),
                trace_calls=len(calls),
                clock=f"of {number}" if own_clock else "common",
                clock_offsets=(offsets or {}).get(number, ()),
                start_clock_s=100.0 + (shift_ms or {}).get(number, 0) / 1e3,
            ),
        )
        ring = np.zeros(len(calls) + 1, EVENT)
        for place, one in enumerate(calls, 1):
            operation, communicator, sequence, begin, end, peer = one
            source = communicator == OWN
            key = Key(2 + OPERATIONS.index(operation), 1, 21, 0, source, 0, communicator)
            shift = (shift_ms or {}).get(number, 0)
            ring[place] = (
                place,
                round((begin + shift) * MS),
                round((end + shift) * MS),
                round(wait_ms * MS) if source else 0,
                encode(key),
                1024,
                sequence,
                1,
                peer,
                0,
            )
        head = (b"hvtrace\n" + struct.pack("<II", VERSION, number)).ljust(EVENT.itemsize, b"\0")
        data = head + ring[1:].tobytes()
        (directory / f"rank-{number:05d}.trace").write_bytes(data)
    return hvprof.load(directory)


def cells(calls: list[Call], size: int) -> list[Cell]:
    """One for each operation, so that the file has their names, and the calls are known."""
    low, high = bin_edges(21)
    found = []
    for name in OPERATIONS:
        count = sum(one[0] == name for one in calls)
        kind = ("native", "data", "mpi", size, low, high)
        found.append(Cell(name, *kind, max(count, 1), 0, 0.0, None, 0.0, 0.0))
    return found


def found_in(recording: hvprof.Recording) -> Waiting:
    found = waiting(recording)
    assert found is not None
    return found


def waits(found: Waiting) -> dict[tuple[int, int, str], tuple[int, float]]:
    return {
        (peer.rank, peer.waited_for, peer.operation): (peer.calls, round(peer.wait_s * 1e3, 6))
        for peer in found.peers
    }


def test_all_wait_for_the_last_to_come(tmp_path: Path) -> None:
    found = found_in(
        put(
            tmp_path / "a",
            [
                [("allreduce", WORLD, 1, 0, 11, -1), ("allreduce", WORLD, 2, 20, 25, -1)],
                [("allreduce", WORLD, 1, 10, 11, -1), ("allreduce", WORLD, 2, 21, 25, -1)],
                [("allreduce", WORLD, 1, 4, 12, -1), ("allreduce", WORLD, 2, 24, 25, -1)],
            ],
        )
    )
    assert waits(found) == {
        (0, 1, "allreduce"): (1, 10),
        (2, 1, "allreduce"): (1, 6),
        (0, 2, "allreduce"): (1, 4),
        (1, 2, "allreduce"): (1, 3),
    }
    (operation,) = found.operations
    assert (operation.calls, operation.size, operation.low_bytes) == (6, 3, 1024)
    assert operation.wait_s == pytest.approx(0.023)
    assert operation.transfer_s == pytest.approx(0.030 - 0.023)
    assert [round(peer.wait_s * 1e3) for peer in found.peers] == [10, 6, 4, 3]


def test_a_broadcast_waits_for_its_root_alone(tmp_path: Path) -> None:
    # Rank 2 comes last, but rank 0 waits for the root, rank 1, whose number on PAIR is 1.
    on_world = [[("bcast", WORLD, 1, begin, end, 1)] for begin, end in ((0, 6), (5, 5.5), (9, 10))]
    found = found_in(put(tmp_path / "a", on_world))
    assert waits(found) == {(0, 1, "bcast"): (1, 5)}
    on_pair: list[list[Call]] = [
        [],
        [("bcast", PAIR, 1, 0, 3, 0)],
        [("bcast", PAIR, 1, 2, 3, 0)],
    ]
    assert waits(found_in(put(tmp_path / "b", on_pair))) == {(1, 2, "bcast"): (1, 2)}


def test_no_rank_waits_longer_than_the_call_took(tmp_path: Path) -> None:
    # Short messages are sent and forgotten: rank 0 was gone before rank 1 came.
    found = found_in(
        put(
            tmp_path / "a",
            [[("allreduce", WORLD, 1, 0, 2, -1)], [("allreduce", WORLD, 1, 50, 51, -1)]],
        )
    )
    assert waits(found) == {(0, 1, "allreduce"): (1, 2)}


def test_what_a_ring_has_lost_is_not_guessed(tmp_path: Path) -> None:
    # Of the first, rank 1 has no trace left; the third is another operation there.
    found = found_in(
        put(
            tmp_path / "a",
            [
                [
                    ("allreduce", WORLD, 1, 0, 9, -1),
                    ("allreduce", WORLD, 2, 10, 12, -1),
                    ("bcast", WORLD, 3, 20, 22, 0),
                    ("iallreduce", WORLD, 4, 30, 31, -1),
                ],
                [("allreduce", WORLD, 2, 11, 12, -1), ("allreduce", WORLD, 3, 21, 22, -1)],
            ],
        )
    )
    assert waits(found) == {(0, 1, "allreduce"): (1, 1)}
    # 3 allreduces, 2 bcasts (of rank 1 the cell that is there for the name) and 1 more.
    assert found.covered_calls == 2
    assert found.covered_percent == pytest.approx(100 * 2 / found.calls)


def test_what_hvd_ext_measured_is_taken(tmp_path: Path) -> None:
    calls: list[list[Call]] = [
        [("allreduce", OWN, 1, 0, 10, -1)],
        [("allreduce", OWN, 1, 6, 10, -1)],
    ]
    found = found_in(put(tmp_path / "a", calls, wait_ms=7))
    # Not more than the call took; and who came last waited for what it lacked.
    assert waits(found) == {(0, 1, "allreduce"): (1, 7)}
    assert found.operations[0].wait_s == pytest.approx(0.007 + 0.004)


def test_clocks_that_drift_apart_are_brought_together(tmp_path: Path) -> None:
    calls: list[list[Call]] = [
        [("allreduce", WORLD, 1, 1000, 1010, -1), ("allreduce", WORLD, 2, 5000, 5009, -1)],
        # The clock of ranks 1 and 2 is 500 ms ahead, and 1 s when it is 6 s.
        [("allreduce", WORLD, 1, 1500, 1510, -1), ("allreduce", WORLD, 2, 6004, 6009, -1)],
        [("allreduce", WORLD, 1, 1504.5, 1511, -1), ("allreduce", WORLD, 2, 6000, 6009, -1)],
    ]
    offsets = (ClockOffset(1.5, -0.5, 1e-6), ClockOffset(6.0, -1.0, 1e-6))
    recording = put(tmp_path / "a", calls, offsets={1: offsets, 2: ()})
    # The first rank of a clock measures for all that share it.
    for rank in recording.ranks[1:]:
        write_rank(tmp_path / "a", replace(rank, clock="theirs"))
    found = waits(found_in(hvprof.load(tmp_path / "a")))
    assert found == {
        (0, 2, "allreduce"): (1, 4),
        (1, 2, "allreduce"): (1, 4),
        (0, 1, "allreduce"): (1, 4),
        (2, 1, "allreduce"): (1, 4),
    }


def test_without_a_measured_offset_the_time_of_day_serves(tmp_path: Path) -> None:
    calls: list[list[Call]] = [
        [("allreduce", WORLD, 1, 0, 10, -1)],
        [("allreduce", WORLD, 1, 8, 10, -1)],
    ]
    recording = put(tmp_path / "a", calls, offsets={1: ()}, shift_ms={1: 7000})
    trace = load_trace(recording)
    assert trace is not None
    assert [rank.events["begin_ns"].item() for rank in trace.ranks] == [0, 8 * MS]
    assert waits(found_in(recording)) == {(0, 1, "allreduce"): (1, 8)}
