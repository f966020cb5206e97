"""Reading recordings, sound and hostile, and what is computed from them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

import hvprof
from hvd_ext.errors import UsageError
from hvprof.analysis.analysis import Analysis
from hvprof.analysis.summary import SIZE_ROWS, size_row
from hvprof.cli import main
from hvprof.format.bins import bin_edges
from hvprof.format.layout import CELL, FIXED
from hvprof.format.writer import encode_rank, write_rank
from hvprof.machine import RunUsage
from hvprof.model import Cell, Partner, RankRecording
from hvprof.reporters.comparison import render
from hvprof.reporters.formats.json_csv import as_json
from hvprof.reporters.header import warnings
from hvprof.reporters.terminal import terminal

MIB = 2**20


def size_bin(message_bytes: int) -> int:
    """The recorder's bins, found by search."""
    return next(i for i in range(129) if bin_edges(i)[0] <= message_bytes <= bin_edges(i)[1])


def cell(
    operation: str,
    message_bytes: int,
    calls: int,
    time_ms: float,
    *,
    traffic: str = "data",
    algorithm: str = "native",
    size: int = 2,
    wait_ms: float | None = None,
) -> Cell:
    low, high = bin_edges(size_bin(message_bytes))
    return Cell(
        operation=operation,
        algorithm=algorithm,
        traffic=traffic,
        source="mpi" if wait_ms is None else "hvd_ext",
        size=size,
        low_bytes=low,
        high_bytes=high,
        calls=calls,
        message_bytes=calls * message_bytes,
        time_s=time_ms / 1e3,
        wait_s=None if wait_ms is None else wait_ms / 1e3,
        min_s=time_ms / 1e3 / calls,
        max_s=time_ms / 1e3 / calls,
    )


def rank_file(
    rank: int, cells: list[Cell], *, size: int = 2, version: int = 3, state: int = 1
) -> bytes:
    content = encode_rank(
        RankRecording(
            rank=rank,
            size=size,
            host="node\x1b[31m",
            pid=4711,
            state="finalized",
            start_unix_s=1e9,
            end_unix_s=1e9 + 1 if state else None,
            recorder_cost_s=6e-8,
            dropped_calls=0,
            mpi_library="Open MPI v4.1.8, package: x",
            cells=tuple(cells),
        )
    )
    return content[:8] + struct.pack("<II", version, state) + content[16:]


def write(directory: Path, ranks: list[list[Cell]], **options: int) -> Path:
    directory.mkdir(exist_ok=True)
    for rank, cells in enumerate(ranks):
        path = directory / f"rank-{rank:05d}.hvprof"
        path.write_bytes(rank_file(rank, cells, size=len(ranks), **options))
    return directory


# Bin 255 does not exist.
NO_CELL = struct.pack("<QQQ", 255 << 16, 0, 1).ljust(CELL.itemsize, b"\0")


def shown(what: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=120)
    if isinstance(what, hvprof.Recording):
        terminal.render(Analysis(what), console)
    else:
        render(what, console)
    return out.getvalue()


def test_messages_by_partner_and_kernel_counters_are_read_as_written(tmp_path: Path) -> None:
    content = rank_file(0, [cell("recv", 8, 3, 1)])
    (tmp_path / "rank-00000.hvprof").write_bytes(content)
    older = hvprof.load(tmp_path).ranks[0]
    assert older.partners == ()
    assert older.usage is None
    partners = (Partner(-1, "to", 1, 8, 0.5), Partner(1, "from", 3, 24, 1.5))
    usage = RunUsage(0.25, 1.0, 0.5, 3.0, 2.0, 0.75, 0.5, 10**9, 5, 2)
    waitall = dataclasses.replace(
        older.cells[0],
        operation="waitall",
        low_bytes=0,
        high_bytes=0,
        message_bytes=0,
        ended=6,
        ended_bytes=10**12,
    )
    cells = (*older.cells, waitall)
    newer = dataclasses.replace(older, cells=cells, partners=partners, usage=usage)
    write_rank(tmp_path, newer)
    assert hvprof.load(tmp_path).ranks[0] == newer


def test_recording_that_takes_much_of_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank-00000.hvprof").write_bytes(rank_file(0, [cell("test", 8, 3000, 1)]))
    (rank,) = hvprof.load(tmp_path).ranks
    for cost_s, said in ((1e-7, False), (1e-4, True)):
        end_s = rank.start_unix_s + 1.0
        one = dataclasses.replace(rank, recorder_cost_s=cost_s, end_unix_s=end_s)
        found = warnings(hvprof.Recording(tmp_path, (one,)))
        assert any("recording takes up to 30 % of the run" in text for text in found) == said


def test_rows_keep_to_their_edges() -> None:
    def label(message_bytes: int) -> str:
        return SIZE_ROWS[size_row(bin_edges(size_bin(message_bytes))[0])][0]

    expected = {
        0: "-",
        **dict.fromkeys([1, 1023], "<1 KB"),
        **dict.fromkeys([1024, 1025, 2**17], "1-128 KB"),
        **dict.fromkeys([2**17 + 1, 16 * MIB], "128 KB-16 MB"),
        **dict.fromkeys([16 * MIB + 1, 32 * MIB], "16-32 MB"),
        **dict.fromkeys([32 * MIB + 1, 64 * MIB], "32-64 MB"),
        **dict.fromkeys([64 * MIB + 1, 128 * MIB], "64-128 MB"),
        **dict.fromkeys([128 * MIB + 1, 2**40, 2**63], ">128 MB"),
    }
    assert {value: label(value) for value in expected} == expected


def test_bins_neither_overlap_nor_leave_gaps() -> None:
    # Between 1 and 2 there is nothing: that bin is empty.
    bins = [bin_edges(index) for index in range(129) if index != 2]
    assert bins[0] == (0, 0)
    for (_, high), (low, _) in pairwise(bins):
        assert low == high + 1


def test_a_row_sums_over_ranks_and_bins(tmp_path: Path) -> None:
    # 40 and 48 MiB lie in two bins of one row.
    ranks = [
        [cell("allreduce", 40 * MIB, 10, 100), cell("allreduce", 64 * MIB, 2, 40)],
        [cell("allreduce", 40 * MIB, 10, 300)],
    ]
    (row,) = hvprof.rows(hvprof.load(write(tmp_path / "a", ranks)), "data")
    assert (row.message_size, row.calls, row.calls_min, row.calls_max) == ("32-64 MB", 22, 10, 12)
    assert row.message_bytes == (20 * 40 + 2 * 64) * MIB
    assert (row.time_s, row.time_max_s) == pytest.approx((0.22, 0.3))
    assert (row.avg_s, row.min_s, row.max_s) == pytest.approx((0.02, 0.01, 0.03))
    assert row.algbw_gb_s == pytest.approx(row.message_bytes / 0.44 / 1e9)
    assert row.busbw_gb_s == pytest.approx(row.algbw_gb_s)
    assert row.wait_s is None


def test_traffic_is_kept_apart(tmp_path: Path) -> None:
    cells = [
        cell("allreduce", 8, 1000, 50, traffic="control"),
        cell("allreduce", 4000, 5, 1, traffic="transport"),
        cell("allreduce", 4000, 5, 2, algorithm="hierarchical", wait_ms=0.5),
        cell("iallreduce", 4000, 1, 1),
    ]
    recording = hvprof.load(write(tmp_path / "a", [cells, cells]))
    data = {row.operation: row for row in hvprof.rows(recording, "data")}
    assert set(data) == {"allreduce", "iallreduce"}
    assert data["allreduce"].wait_s == pytest.approx(0.0005)
    assert data["iallreduce"].algbw_gb_s is None
    assert [row.calls for row in hvprof.rows(recording, "control")] == [2000]
    assert [row.calls for row in hvprof.rows(recording, "transport")] == [10]
    assert recording.time_s("allreduce") == pytest.approx(0.002)
    assert hvprof.exposed(recording) is None
    assert "allreduce (hierarchical)" in shown(recording)


def test_comparison_has_the_improvement_of_each_row(tmp_path: Path) -> None:
    default = write(
        tmp_path / "default",
        [[cell("allreduce", 2048, 100, 40), cell("allreduce", 64 * MIB, 10, 200)]] * 2,
    )
    better = write(
        tmp_path / "better",
        [
            [
                cell("allreduce", 2048, 100, 50),
                cell("allreduce", 64 * MIB, 9, 80, algorithm="hierarchical", wait_ms=1),
                cell("allreduce", 65 * MIB, 1, 10),
                cell("allreduce", 8, 100, 500, traffic="control"),
            ]
        ]
        * 2,
    )
    compared = hvprof.compare(hvprof.load(default), hvprof.load(better))
    assert compared.labels == ("default", "better")
    improvements = {row.name: row.improvement_percent for row in compared.rows}
    assert improvements["1-128 KB"] == pytest.approx(-25)
    # Time for a byte: one message less, in 80 instead of 200 ms.
    assert improvements["32-64 MB"] == pytest.approx(100 * (1 - (80 / 9) / (200 / 10)))
    assert improvements["64-128 MB"] is None
    assert compared.total.improvement_percent == pytest.approx(100 * (1 - 140 / 240), abs=0.1)
    assert compared.same_bytes
    assert "moved different amounts of data" not in shown(compared)
    half = write(tmp_path / "half", [[cell("allreduce", 2048, 50, 20)]])
    assert "moved different amounts of data" in shown(
        hvprof.compare(hvprof.load(default), hvprof.load(half))
    )
    # Half the steps at the same speed are no improvement.
    fewer = write(tmp_path / "fewer", [[cell("allreduce", 2048, 100, 40)]])
    same_speed = hvprof.compare(hvprof.load(fewer), hvprof.load(half))
    assert same_speed.total.improvement_percent == pytest.approx(0)
    # A side without an allreduce has no row and no percentage.
    none = write(tmp_path / "none", [[cell("bcast", 8, 1, 1)]])
    assert hvprof.compare(hvprof.load(none), hvprof.load(none)).total.improvement_percent is None


def test_lost_and_unfinished_ranks_are_named(tmp_path: Path) -> None:
    directory = write(tmp_path / "a", [[cell("bcast", 8, 1, 1)]] * 4, state=0)
    (directory / "rank-00002.hvprof").unlink()
    text = shown(hvprof.load(directory))
    assert "3 of 4 ranks" in text
    assert "no recording of rank 2" in text
    assert "ranks 0, 1, 3 did not finish" in text
    for rank in (0, 1, 3):
        content = rank_file(rank, [], size=2**31 - 1)
        (directory / f"rank-{rank:05d}.hvprof").write_bytes(content)
    assert "no recording of ranks 2, 4, 5," in shown(hvprof.load(directory))


def test_names_do_not_steer_the_terminal(tmp_path: Path) -> None:
    directory = write(tmp_path / "a", [[cell("bcast", 8, 1, 1)]])
    meta = {"command": ["[bold]x", "\x1b[2Jy"], "host": "\x07"}
    (directory / "meta.json").write_text(json.dumps(meta))
    text = shown(hvprof.load(directory))
    assert "\x1b" not in text
    assert "[bold]x" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is cut off: 0 of"),
        (b"hvpr", "is cut off: 4 of"),
        (rank_file(0, [])[:5000], "is cut off: 5000 of"),
        (rank_file(0, [], version=1), "has format 1, this hvprof reads 3 to 4"),
        (b"\x7fELF and more", "hvprof did not write it"),
        (rank_file(0, [], version=5), "has format 5, this hvprof reads 3 to 4"),
        (rank_file(0, [], version=5)[:600], "has format 5, this hvprof reads 3 to 4"),
        (rank_file(5, [], size=2), "rank 5 of 2"),
        (rank_file(0, [], state=9), "state 9"),
        (rank_file(0, [cell("bcast", 8, 1, 1)])[: -CELL.itemsize] + NO_CELL, "no such cell"),
    ],
)
def test_a_hostile_rank_file_is_one_clear_line(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "rank-00000.hvprof").write_bytes(content)
    with pytest.raises(UsageError, match=said) as raised:
        main(["report", str(tmp_path)])
    assert "\n" not in str(raised.value)
    assert "rank-00000.hvprof" in str(raised.value)


def test_a_cell_of_time_without_calls_is_left_out(tmp_path: Path) -> None:
    directory = write(tmp_path / "a", [[cell("bcast", 8, 1, 1)], [cell("bcast", 8, 1, 1)]])
    path = directory / "rank-00001.hvprof"
    table = np.frombuffer(bytearray(path.read_bytes()[-CELL.itemsize :]), CELL)
    table["calls"] = 0
    path.write_bytes(path.read_bytes()[: -CELL.itemsize] + table.tobytes())
    assert [len(rank.cells) for rank in hvprof.load(directory).ranks] == [1, 0]
    assert "bcast" in shown(hvprof.load(directory))


@pytest.mark.parametrize(
    "meta",
    [
        "",
        "[1]",
        '{"command": 5}',
        '{"duration_s": "x"}',
        '{"duration_s": NaN}',
        '{"start_unix_s": 1e300}',
        '{"start_unix_s": Infinity}',
        "\x00",
    ],
)
def test_hostile_meta_data_is_one_clear_line(meta: str, tmp_path: Path) -> None:
    write(tmp_path, [[cell("bcast", 8, 1, 1)]])
    (tmp_path / "meta.json").write_text(meta)
    with pytest.raises(UsageError, match=r"meta\.json"):
        hvprof.load(tmp_path)


def test_whole_seconds_are_numbers(tmp_path: Path) -> None:
    write(tmp_path, [[cell("bcast", 8, 1, 1)]])
    (tmp_path / "meta.json").write_text('{"start_unix_s": 1, "duration_s": 2}')
    assert "2.0 s" in shown(hvprof.load(tmp_path))


def test_a_directory_without_a_recording(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        hvprof.load(tmp_path / "absent")
    with pytest.raises(UsageError, match="holds no recording"):
        hvprof.load(tmp_path)
    (tmp_path / "meta.json").write_text("{}")
    with pytest.raises(UsageError, match="holds no recording"):
        hvprof.load(tmp_path)


def test_two_files_of_one_rank(tmp_path: Path) -> None:
    write(tmp_path, [[], []])
    (tmp_path / "rank-00001.hvprof").write_bytes(rank_file(0, []))
    with pytest.raises(UsageError, match="two files of rank 0"):
        hvprof.load(tmp_path)


def test_ranks_of_two_jobs(tmp_path: Path) -> None:
    write(tmp_path, [[], []])
    (tmp_path / "rank-00002.hvprof").write_bytes(rank_file(2, [], size=3))
    with pytest.raises(UsageError, match="rank 1 of 2 and rank 2 of 3: keep one job's"):
        hvprof.load(tmp_path)


def test_a_rank_that_was_killed_at_its_start_is_missing(tmp_path: Path) -> None:
    write(tmp_path, [[cell("bcast", 8, 1, 1)]] * 2)
    (tmp_path / "rank-00001.hvprof").write_bytes(bytes(100_000))
    assert "no recording of rank 1" in shown(hvprof.load(tmp_path))
    (tmp_path / "rank-00000.hvprof").write_bytes(bytes(100_000))
    with pytest.raises(UsageError, match="holds no recording: its ranks were killed"):
        hvprof.load(tmp_path)


def test_a_pipe_is_no_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-00000.hvprof")
    with pytest.raises(UsageError, match=r"rank-00000\.hvprof is not a regular file"):
        hvprof.load(tmp_path)


@settings(deadline=None)
@example(places=[(96, b"\x01"), (168, b"\x01")])  # steps, of which none has a time
@given(
    places=st.lists(
        st.tuples(
            st.integers(8, 1200) | st.integers(FIXED.itemsize, FIXED.itemsize + 2 * CELL.itemsize),
            st.binary(min_size=1, max_size=16),
        )
    )
)
def test_any_damage_is_an_error_or_a_report(
    places: list[tuple[int, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(rank_file(0, [cell("bcast", 8, 1, 1), cell("allreduce", 4096, 3, 2)]))
    for place, noise in places:
        content[place : place + len(noise)] = noise
    directory = tmp_path_factory.mktemp("damaged")
    (directory / "rank-00000.hvprof").write_bytes(content)
    # A header that claims a trace is found out when the trace is read.
    with contextlib.suppress(UsageError):
        recording = hvprof.load(directory)
        shown(recording)
        json.dumps(as_json(Analysis(recording)), allow_nan=False)
        shown(hvprof.compare(recording, recording))
