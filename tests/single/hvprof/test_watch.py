"""hvprof watch on made recordings: what is between two readings, and files that cannot be read."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hvd_ext.errors import UsageError
from hvprof import cli
from hvprof.format.counters import read_counters
from hvprof.format.layout import CELL, FIXED, HEADER, STEP
from hvprof.live.process import clock_name
from hvprof.live.rates import Rates, rates
from hvprof.live.snapshot import RankState, Snapshot, read_snapshot
from hvprof.model import Step
from hvprof.reporters.watch import Watched, render
from tests.support.hvprof.made_recordings import put_current, write_job

INTERVAL_S = 4.0
CLOCK_AT = HEADER.fields["clock"][1] if HEADER.fields else 0


def running(directory: Path, ranks: int, steps: int) -> Path:
    """A made job whose ranks run by this machine's clock; their processes are not looked at."""
    write_job(directory, ranks, steps, noise=0)
    (directory / "meta.json").unlink()
    for path in directory.glob("rank-*.hvprof"):
        data = bytearray(path.read_bytes())
        data[12:16] = bytes(4)
        clock = clock_name().encode()
        data[CLOCK_AT : CLOCK_AT + len(clock)] = clock
        path.write_bytes(data)
    return directory


def snapshot(directory: Path) -> Snapshot:
    read = read_snapshot(directory)
    assert read is not None
    return read


def later(read: Snapshot, **changes: dict[int, Step]) -> Snapshot:
    """The reading as of INTERVAL_S later, with the sums of the steps of some ranks changed."""
    ranks: dict[int, RankState] = {}
    for rank, state in read.ranks.items():
        at_ns = state.counters.at_ns + int(INTERVAL_S * 1e9)
        steps = changes.get("steps", {}).get(rank, state.counters.steps)
        ranks[rank] = replace(state, counters=replace(state.counters, at_ns=at_ns, steps=steps))
    return replace(read, ranks=ranks)


def two_readings(tmp_path: Path) -> tuple[Snapshot, Snapshot]:
    """Of 3 ranks, after 100 and after 112 steps; 4 s lie between them."""
    before = snapshot(running(tmp_path / "a", 3, 100))
    after = snapshot(running(tmp_path / "b", 3, 112))
    at = {rank: state.counters.at_ns for rank, state in before.ranks.items()}
    ranks = {
        rank: replace(state, counters=replace(state.counters, at_ns=at[rank]))
        for rank, state in after.ranks.items()
    }
    return before, later(replace(after, ranks=ranks))


def test_rates_are_those_between_the_readings(tmp_path: Path) -> None:
    before, after = two_readings(tmp_path)
    found = rates(before, after)
    assert [one.rank for one in found.ranks] == [0, 1, 2]
    for one in found.ranks:
        first, last = before.ranks[one.rank].counters.steps, after.ranks[one.rank].counters.steps
        assert first is not None
        assert last is not None
        mean_s = (last.time_s - first.time_s) / 12
        assert one.steps_s == pytest.approx(1 / mean_s)
        assert one.trend == pytest.approx(first.time_s / 100 / mean_s - 1)
        assert one.step is not None
        assert one.step.index == 12
        assert one.outside == pytest.approx(1 - one.step.exposed_s / one.step.time_s)
        # 10 allreduces, and an allgather of hvd_ext's own; the coordination is left out.
        assert one.mpi_s == pytest.approx(after.ranks[0].mpi_s - before.ranks[0].mpi_s)
        assert one.outside_s == pytest.approx(INTERVAL_S - one.mpi_s)
    allreduce = found.operations[0]
    assert allreduce.operation == "allreduce"
    assert allreduce.calls_s == pytest.approx(10 * 12 / INTERVAL_S)
    assert allreduce.share == pytest.approx(found.ranks[0].mpi_s / INTERVAL_S)
    assert allreduce.algbw_gb_s == pytest.approx(allreduce.bytes_s / allreduce.share / 1e9)


def slow(step: Step | None, steps: int, compute_s: float) -> Step:
    assert step is not None
    time_s = steps * 0.5
    return replace(
        step,
        index=step.index + steps,
        time_s=step.time_s + time_s,
        compute_s=step.compute_s + compute_s * time_s,
        exposed_s=step.exposed_s + (1 - compute_s) * time_s,
    )


def test_the_rank_that_is_least_in_communication_is_the_slowest(tmp_path: Path) -> None:
    before = snapshot(running(tmp_path / "a", 3, 100))
    shares = {0: 0.5, 1: 0.9, 2: 0.51}
    steps = {r: slow(before.ranks[r].counters.steps, 8, share) for r, share in shares.items()}
    found = rates(before, later(before, steps=steps))
    assert found.slowest == 1
    assert found.step is not None
    assert found.step.time_s == pytest.approx(0.5)
    even = {rank: slow(before.ranks[rank].counters.steps, 8, 0.5) for rank in range(3)}
    assert rates(before, later(before, steps=even)).slowest is None


def test_a_call_that_has_not_ended_is_time_in_mpi(tmp_path: Path) -> None:
    directory = running(tmp_path / "a", 2, 100)
    put_current(directory, 0)
    read = snapshot(directory)
    assert 30 <= read.ranks[0].call_s == read.ranks[0].unended_s < 60
    assert read.ranks[1].call_s == read.ranks[1].unended_s == 0
    time.sleep(0.5)
    after = snapshot(directory)
    found = rates(read, after)
    assert found.ranks[0].mpi_s == pytest.approx(found.ranks[0].interval_s, abs=0.05)
    assert found.ranks[1].mpi_s == 0
    assert found.slowest == 1
    assert found.step is None


def test_another_job_in_the_same_folder_shares_no_counts(tmp_path: Path) -> None:
    before = snapshot(running(tmp_path / "a", 2, 100))
    other = later(before)
    counters = {r: replace(s.counters, start_unix_ns=1) for r, s in other.ranks.items()}
    ranks = {rank: replace(s, counters=counters[rank]) for rank, s in other.ranks.items()}
    found = rates(before, replace(other, ranks=ranks))
    assert found == Rates((), (), None, None)
    assert "none of them in two readings yet" in render(Watched("a", 0.0, 2, found, 0.0, ()))


def test_a_step_is_read_whole_or_not_yet(tmp_path: Path) -> None:
    """The place of the next step is written first, then the sum, and the count last."""
    path = running(tmp_path / "a", 1, 100) / "rank-00000.hvprof"
    whole = path.read_bytes()
    fixed = np.frombuffer(whole, FIXED, 1).copy()
    step = fixed[0]["header"]["all_steps"]
    before_ns = step["time_ns"].item()
    fixed[0]["steps"][100]["index"], fixed[0]["steps"][100]["time_ns"] = 100, 10**9
    step["time_ns"] += 10**9  # and not yet its parts
    path.write_bytes(fixed.tobytes() + whole[FIXED.itemsize :])

    def end() -> None:
        step["compute_ns"] += 10**9
        step["index"] = fixed[0]["header"]["step_count"] = 101
        with path.open("r+b") as file:
            file.write(fixed.tobytes()[: HEADER.itemsize])

    thread = threading.Timer(0.002, end)
    thread.start()
    read = read_counters(path)
    thread.join()
    assert read is not None
    assert read.steps is not None
    assert read.steps.index == 101
    assert read.steps.time_s == pytest.approx((before_ns + 10**9) / 1e9)
    assert read.steps.compute_s == pytest.approx(step["compute_ns"].item() / 1e9)
    assert STEP.itemsize == step.dtype.itemsize


def test_a_cell_that_stays_locked_is_read(tmp_path: Path) -> None:
    """Its thread was killed while it counted."""
    path = running(tmp_path / "a", 1, 100) / "rank-00000.hvprof"
    free = read_counters(path)
    data = bytearray(path.read_bytes())
    data[FIXED.itemsize + CELL.fields["lock"][1]] = 1  # type: ignore[index]
    path.write_bytes(data)
    locked = read_counters(path)
    assert free is not None
    assert locked is not None
    assert locked.counts == free.counts


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    directory = running(tmp_path / "job", 2, 100)
    path = directory / "rank-00001.hvprof"
    data = path.read_bytes()
    cases = {
        data[:500]: "is cut off: 500 of",
        data[:-100]: "is cut off: ",
        b"another's" + data[9:]: "hvprof did not write it",
        data[:8] + b"\x09\0\0\0" + data[12:]: "has format 9, this hvprof reads 3 to 4",
    }
    for damaged, said in cases.items():
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=said):
            cli.main(["watch", str(directory), "--once", "--every", "0.1"])
    path.write_bytes(bytes(len(data)))  # begun, not written yet
    assert list(snapshot(directory).ranks) == [0]
    with pytest.raises(UsageError, match="name a folder"):
        cli.main(["watch", str(tmp_path / "none")])
    with pytest.raises(UsageError, match="no rank has started MPI"):
        cli.main(["watch", str(tmp_path)])


def test_a_job_that_has_ended_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_job(tmp_path / "job", 2)
    assert cli.main(["watch", str(directory)]) == 0
    assert capsys.readouterr().out == f"{directory}: the job has ended with code 0\n"
    (directory / "meta.json").unlink()
    assert cli.main(["watch", str(directory), "--json"]) == 0
    read = capsys.readouterr()
    assert read.out == ""
    assert read.err == f"{directory}: the job has ended: ranks 0 and 1 have ended MPI\n"


def test_4096_ranks_fit_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray((running(tmp_path / "one", 1, 100) / "rank-00000.hvprof").read_bytes())
    many = tmp_path / "many"
    many.mkdir()
    for number in range(0, 4096, 16):
        head = data[:16] + number.to_bytes(4, "little") + (4096).to_bytes(4, "little")
        (many / f"rank-{number:05d}.hvprof").write_bytes(head + data[24:])
        put_current(many, number)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["watch", "many", "--once", "--every", "0.1"]) == 0
    block = capsys.readouterr().out
    assert max(map(len, block.splitlines())) <= 80
    assert "4096 ranks" in block
    assert "248 more ranks" in block
    assert "blocked: for " in block
    assert cli.main(["watch", "many", "--once", "--every", "0.1", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    read = json.loads(line)
    assert len(read["ranks"]) == 256
    assert read["causes"]
    assert time.time() - read["unix_s"] < 600
