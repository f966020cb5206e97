"""Files of ranks and traces: what is written is read back, and damage is reported."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hvprof
from hvd_ext.errors import UsageError
from hvprof.analysis.summary import quantile_s
from hvprof.analysis.waiting.wait_time import waiting
from hvprof.format.bins import BINS, BUCKETS, bin_edges, bin_index, bucket_edges_s, bucket_index
from hvprof.format.key import Key, encode
from hvprof.format.layout import CELL, EVENT, FIXED, VERSION
from hvprof.format.trace import load_trace
from hvprof.format.writer import write_rank
from hvprof.model import (
    Cell,
    ClockOffset,
    Communicator,
    RankRecording,
    Region,
    RegistrationCache,
    Step,
)
from hvprof.reporters.formats.perfetto import write_chrome

WORLD = Communicator("00000000000000a1", 2, "MPI_COMM_WORLD", "0-1", 0)
TIMES = ((137, 6), (160, 2))


def cell(operation: str = "allreduce", message_bytes: int = 4096, calls: int = 8) -> Cell:
    low, high = bin_edges(bin_index(message_bytes))
    return Cell(
        operation=operation,
        algorithm="native",
        traffic="data",
        source="mpi",
        size=2,
        low_bytes=low,
        high_bytes=high,
        calls=calls,
        message_bytes=calls * message_bytes,
        time_s=0.25,
        wait_s=None,
        min_s=0.01,
        max_s=0.125,
        datatype="MPI_FLOAT",
        communicator=WORLD.id,
        histogram=TIMES,
        block_calls=4,
        blocks_s=(0.1, 0.15),
    )


def rank(number: int = 0, **changes: object) -> RankRecording:
    times_s = (0.5, 1.0, 0.5, 0.25, 0.125, 0.125, 0.125, 0.625, 0.125, 0.0625, 0.5, 1.25)
    step = Step(0, *times_s, preemptions=7, page_faults=300)
    fields = {
        "rank": number,
        "size": 2,
        "host": "node",
        "pid": 4711,
        "state": "finalized",
        "start_unix_s": 1e9,
        "end_unix_s": 1e9 + 2,
        "recorder_cost_s": 1e-7,
        "dropped_calls": 3,
        "mpi_library": "Open MPI",
        "cells": (cell(), cell("bcast", 24)),
        "communicators": (WORLD,),
        "regions": (Region("forward", "compute", 8, 0.25, 0.01, 0.125, TIMES, 4, (0.1, 0.15)),),
        "steps": (step,),
        "step_count": 1,
        "all_steps": dataclasses.replace(step, index=1),
        "registration_cache": RegistrationCache("MPI_T", 3, 1),
        "clock": "boot",
        "clock_offsets": (ClockOffset(1.0, -2.5, 1e-6),),
        "start_clock_s": 7.5,
        "cores": 2,
        "host_cores": 4,
        "knows_queue": True,
        "yields": True,
    }
    return RankRecording(**{**fields, **changes})


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    ranks = [rank(0), rank(1, registration_cache=None, steps=(), step_count=0, all_steps=None)]
    for one in ranks:
        write_rank(tmp_path, one)
    assert list(hvprof.load(tmp_path).ranks) == ranks
    assert ranks[0].all_steps.overlap_percent == pytest.approx(100 / 3)


def test_what_the_kernel_does_not_count_is_not_zero(tmp_path: Path) -> None:
    write_rank(tmp_path, rank(0, knows_queue=False))
    recording = hvprof.load(tmp_path)
    assert recording.ranks[0].steps[0].queued_s is None
    assert recording.all_steps is not None
    assert recording.all_steps.queued_s is None


def test_a_mean_over_ranks_leaves_out_those_without_steps(tmp_path: Path) -> None:
    write_rank(tmp_path, rank(0))
    write_rank(tmp_path, rank(1, steps=(), step_count=0, all_steps=None))
    assert hvprof.load(tmp_path).all_steps == rank().all_steps


def test_bins_and_buckets_hold_what_their_edges_say() -> None:
    for index in range(BINS):
        low, high = bin_edges(index)
        # Between 1 and 2 there is nothing.
        assert index == 2 or bin_index(low) == bin_index(high) == index
    for bucket in range(BUCKETS - 1):
        low_s, high_s = bucket_edges_s(bucket)
        assert bucket_index(round(low_s * 1e9)) == bucket
        assert bucket_index(round(high_s * 1e9) - 1) == bucket
        assert bucket_edges_s(bucket + 1)[0] == high_s


@given(st.lists(st.floats(1e-7, 10.0), min_size=1, max_size=200), st.floats(0.0, 1.0))
def test_quantiles_are_within_seven_percent(times_s: list[float], q: float) -> None:
    histogram = np.bincount([bucket_index(round(time * 1e9)) for time in times_s])
    of_calls = tuple((int(i), int(histogram[i])) for i in np.flatnonzero(histogram))
    region = Region("x", "other", len(times_s), 0, min(times_s), max(times_s), of_calls)
    exact = np.quantile(times_s, q, method="inverted_cdf")
    assert quantile_s([region], q) == pytest.approx(exact, rel=0.07)


def test_quantiles_without_a_histogram_are_not_known() -> None:
    assert quantile_s([Region("x", "other", 1, 1.0, 1.0, 1.0)], 0.5) is None


def put_event(
    directory: Path, number: int, events: list[tuple[int, ...]], **changes: object
) -> None:
    """A rank's file and its trace, whose ring has room for 8."""
    write_rank(directory, rank(number, trace_capacity=8, trace_calls=len(events), **changes))
    ring = np.zeros(9, EVENT)
    ring[1 : 1 + len(events)] = np.array(events, EVENT)
    head = b"hvtrace\n" + struct.pack("<II", VERSION, number)
    data = head.ljust(EVENT.itemsize, b"\0") + ring[1:].tobytes()
    (directory / f"rank-{number:05d}.trace").write_bytes(data)


# Name 2 is the first that write_rank enters for the cells above: allreduce.
ALLREDUCE = encode(Key(2, 1, size_bin=25, communicator=1))


def call(number: int, begin_ns: int, end_ns: int, key: int = ALLREDUCE) -> tuple[int, ...]:
    return (number, begin_ns, end_ns, 0, key, 4096, number, 1, -1, 0)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"", "is cut off: 0 of"),
        (lambda data: data[:100], "is cut off: 100 of"),
        (lambda data: data[:-1], "is cut off"),
        (lambda data: data[:8] + b"\x02" + data[9:], "has format 2, this hvprof reads 3"),
        (lambda data: data[:8] + b"\x00" + data[9:], "has format 0"),
        (lambda data: b"\x7fELF" + data[4:], "hvprof did not write it"),
        (lambda data: data[:16] + b"\x09" + data[17:], "rank 9 of 2"),
        (lambda data: data[:12] + b"\x07" + data[13:], "state 7"),
        # Four billion cells, and a cell of a communicator that there cannot be.
        (lambda data: data[:72] + b"\xff" * 4 + data[76:], "is cut off"),
        (
            lambda data: data[: FIXED.itemsize + 4] + b"\xff" * 2 + data[FIXED.itemsize + 6 :],
            "no such cell",
        ),
    ],
)
def test_a_damaged_rank_file_is_one_clear_line(damage, said: str, tmp_path: Path) -> None:
    path = write_rank(tmp_path, rank())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UsageError, match=said) as raised:
        hvprof.load(tmp_path)
    assert "\n" not in str(raised.value)
    assert path.name in str(raised.value)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"", "is cut off: 0 of"),
        (lambda data: data[:-64], "is cut off"),
        (lambda data: data + data, "is cut off"),
        (lambda data: b"\x7fELF" + data[4:], "hvprof did not write it"),
        (lambda data: data[:8] + b"\x02" + data[9:], "has format 2, this hvprof reads 3"),
        (lambda data: data[:12] + b"\x03" + data[13:], "rank 3"),
        (lambda data: data[:64] + b"\xff" * 64 + data[128:], "no such call"),
    ],
)
def test_a_damaged_trace_is_one_clear_line(damage, said: str, tmp_path: Path) -> None:
    put_event(tmp_path, 0, [call(1, 10, 20)])
    path = tmp_path / "rank-00000.trace"
    path.write_bytes(damage(path.read_bytes()))
    recording = hvprof.load(tmp_path)
    for reading in (load_trace, waiting, lambda what: write_chrome(what, tmp_path / "x.json")):
        with pytest.raises(UsageError, match=said) as raised:
            reading(recording)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "x.json").exists()


def test_a_trace_without_an_end_is_not_read(tmp_path: Path) -> None:
    put_event(tmp_path, 0, [call(1, 10, 20)])
    os.truncate(tmp_path / "rank-00000.trace", 2**42)
    with pytest.raises(UsageError, match="is cut off"):
        load_trace(hvprof.load(tmp_path))


def test_a_rank_file_may_have_another_name(tmp_path: Path) -> None:
    put_event(tmp_path, 0, [call(1, 10, 20)])
    (tmp_path / "rank-00000.hvprof").rename(tmp_path / "rank-zero.hvprof")
    trace = load_trace(hvprof.load(tmp_path))
    assert trace is not None
    assert trace.ranks[0].tables.names[2] == "allreduce"


def test_blocks_of_any_length_are_read(tmp_path: Path) -> None:
    path = write_rank(tmp_path, rank())
    data = bytearray(path.read_bytes())
    data[FIXED.itemsize + CELL.fields["block_shift"][1]] = 63
    path.write_bytes(data)
    assert hvprof.rows(hvprof.load(tmp_path), "data")


def test_a_trace_that_is_gone_is_named(tmp_path: Path) -> None:
    put_event(tmp_path, 0, [])
    (tmp_path / "rank-00000.trace").unlink()
    with pytest.raises(UsageError, match=r"cannot read .*rank-00000\.trace"):
        load_trace(hvprof.load(tmp_path))


def test_a_recording_without_a_trace_says_how_to_get_one(tmp_path: Path) -> None:
    write_rank(tmp_path, rank())
    recording = hvprof.load(tmp_path)
    assert load_trace(recording) is None
    assert waiting(recording) is None
    with pytest.raises(UsageError, match="record --trace"):
        write_chrome(recording, tmp_path / "x.json")


def test_an_empty_trace_is_a_trace(tmp_path: Path) -> None:
    put_event(tmp_path, 0, [])
    recording = hvprof.load(tmp_path)
    assert write_chrome(recording, tmp_path / "x.json") == 0
    json.loads((tmp_path / "x.json").read_text())
    found = waiting(recording)
    assert found is not None
    assert (found.operations, found.peers, found.covered_percent) == ((), (), 0)


def test_names_neither_steer_a_terminal_nor_break_json(tmp_path: Path) -> None:
    name = '\x1b[31m</script>"\u202e'
    changes = {"cells": (cell(name),), "regions": (), "host": name, "mpi_library": name}
    put_event(tmp_path, 0, [call(1, 10, 20)], **changes)
    recording = hvprof.load(tmp_path)
    texts = [recording.ranks[0].host, recording.ranks[0].cells[0].operation]
    assert all("\x1b" not in text and "\u202e" not in text for text in texts)
    write_chrome(recording, tmp_path / "x.json")
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    assert events[-1]["name"].endswith('</script>"\N{REPLACEMENT CHARACTER}')


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), places=st.integers(1, 20))
def test_any_damage_is_an_error_or_a_recording(
    seed: int, places: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("damaged")
    put_event(directory, 0, [call(1, 10, 20), call(2, 30, 45)])
    put_event(directory, 1, [call(1, 12, 20), call(2, 35, 44)])
    noise = random.Random(seed)
    for path in directory.iterdir():
        data = bytearray(path.read_bytes())
        # Where something is written, not in the zeros between.
        used = [place for place, byte in enumerate(data) if byte]
        for _ in range(places):
            data[noise.choice(used)] = noise.randrange(256)
        path.write_bytes(data)
    try:
        recording = hvprof.load(directory)
        waiting(recording)
        write_chrome(recording, directory / "x.json")
    except UsageError:
        return
    json.loads((directory / "x.json").read_text())
