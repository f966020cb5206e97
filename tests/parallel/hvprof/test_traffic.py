"""Traffic that hvprof records, on programs whose messages are known, and broken recordings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hvprof
from hvprof.analysis.waiting.wait_time import waiting
from hvprof.format.trace import load_trace
from hvprof.importers.horovod_timeline import import_timeline
from hvprof.model import RegistrationCache
from hvprof.reporters.header import warnings
from tests.support.hvprof.recorded import (
    ENVIRONMENT,
    PROGRAMS,
    PYTHON,
    RECORD,
    RECORDER,
    mpirun,
    own_mpi,
    record,
    record_code,
    run,
    totals,
)

PYTHON_EDGES = [0, 1, 2, 3, 1023, 1024, 1025, 2**17, 2**17 + 1, 2**24, 2**24 + 1]


def test_the_report_has_what_threads_of_python_sent(tmp_path: Path) -> None:
    recording = record(tmp_path / "run", 2, "known_traffic.py")
    for rank in recording.ranks:
        calls = {(c.low_bytes, c.communicator): 0 for c in rank.cells if c.operation == "allreduce"}
        for cell in rank.cells:
            assert (cell.traffic, cell.source, cell.size) == ("data", "mpi", 2)
            if cell.operation == "allreduce":
                calls[cell.low_bytes, cell.communicator] += cell.calls
        # 200 calls of 16 bytes on each of three communicators at once.
        assert sorted(n for (low, _), n in calls.items() if low == 16) == [200] * 3
        assert totals(rank)["allreduce"] == (13 + 600, sum(PYTHON_EDGES) + 80 + 8 + 600 * 16)
    done = run([sys.executable, "-m", "hvprof", "report", tmp_path / "run", "--json"])
    report = json.loads(done.stdout)
    rows = {row["message_size"]: row for row in report["data"] if row["operation"] == "allreduce"}
    calls = {size: row["calls"] for size, row in rows.items()}
    # 0, 1, 2, 3, 1023, 80, 8 and the threads' 600 · 1024 to 2^17 · to 2^24 · 2^24 + 1
    small = {"-": 2, "<1 KB": 2 * 606, "1-128 KB": 2 * 3}
    assert calls == {**small, "128 KB-16 MB": 2 * 2, "16-32 MB": 2}
    assert rows["16-32 MB"]["message_bytes"] == 2 * (2**24 + 1)
    # Over two ranks an allreduce's bus bandwidth is its bandwidth.
    assert rows["16-32 MB"]["busbw_gb_s"] == pytest.approx(rows["16-32 MB"]["algbw_gb_s"])
    text = run([sys.executable, "-m", "hvprof", "report", tmp_path / "run"]).stdout
    assert re.search(r"\n +<1 KB +606 ", text)


def test_own_reductions_are_counted_once(tmp_path: Path) -> None:
    recording = record(tmp_path / "run", 2, "own_reductions.py")
    for rank in recording.ranks:
        assert totals(rank, "transport") == {"allreduce": (4, 16000)}
        # Of the program's communicator, and reported: to measure, not for the program.
        assert totals(rank, "tuning") == {"allreduce": (2, 12000)}
        own = next(cell for cell in rank.cells if cell.algorithm == "hierarchical")
        assert (own.source, own.calls, own.message_bytes) == ("hvd_ext", 3, 12000)
        assert (own.wait_s, own.time_s) == (0.75, 2.25)
        assert (own.low_bytes, own.high_bytes) == (2049, 4095)
        # Two more of the program's own, after the name was taken away and after the free.
        assert totals(rank) == {"allreduce": (5, 20000)}
        # Communication within communication is one wait.
        assert {one.name: one.calls for one in rank.regions} == {"exposed": 1, "input": 1}
        assert rank.registration_cache == RegistrationCache("hvd_ext, CUDA IPC handles", 1, 2)
    found = hvprof.exposed(recording)
    assert found is not None
    assert found.steps == 1
    assert found.time_s >= 0.01


def test_any_number_of_names_leaves_room_for_operations(tmp_path: Path) -> None:
    program = (
        "import hvprof, numpy; from mpi4py import MPI\n"
        "for name in ('caf\\udce9', *map(str, range(300))):\n"
        "    with hvprof.region(name): pass\n"
        "MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, numpy.ones(1000))\n"
    )
    recording = record_code(tmp_path / "run", 1, program)
    (rank,) = recording.ranks
    assert totals(rank) == {"allreduce": (1, 8000)}
    regions = {region.name: region.calls for region in rank.regions}
    assert regions["caf?"] == regions["150"] == 1
    assert regions["other"] == rank.unnamed_calls > 100
    assert (
        f'{rank.unnamed_calls} calls and regions are counted as "other"' in warnings(recording)[0]
    )


def test_a_killed_rank_is_still_read(tmp_path: Path) -> None:
    command = [*mpirun(2), *PYTHON, PROGRAMS / "killed_rank.py"]
    done = run([*RECORD, "--trace", "40", "-o", tmp_path / "run", "--", *command])
    assert done.returncode != 0
    recording = hvprof.load(tmp_path / "run")
    assert recording.exit_code == done.returncode
    assert recording.ranks[1].state == "unfinished"
    assert [totals(rank)["allreduce"] for rank in recording.ranks] == [(100, 400000)] * 2
    text = run([sys.executable, "-m", "hvprof", "report", tmp_path / "run"]).stdout
    assert re.search(r"warning: ranks? .*1 did not finish \(at last .* outside of MPI\)", text)
    assert "MPI takes" in text
    assert "Horovod" not in text
    assert all(rank.seen_unix_s and rank.usage for rank in recording.ranks)
    # The ring has the last 40 of 100 calls.
    trace = load_trace(recording)
    assert trace is not None
    assert [rank.events["number"].tolist() for rank in trace.ranks] == [list(range(61, 101))] * 2
    found = waiting(recording)
    assert found is not None
    assert (found.covered_calls, found.covered_percent) == (80, 40)


def test_another_preload_stays_behind_ours(tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    source = tmp_path / "other.c"
    source.write_text("int of_the_other(void) { return 7; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", other], check=True)
    program = (
        "import ctypes, os; from mpi4py import MPI; MPI.COMM_WORLD.Barrier();"
        "print(ctypes.CDLL(None).of_the_other(), os.environ['LD_PRELOAD'])"
    )
    done = run(
        [*RECORD, "-o", tmp_path / "run", "--", *mpirun(1), sys.executable, "-c", program],
        {**ENVIRONMENT, "LD_PRELOAD": str(other)},
    )
    assert done.stdout == f"7 {RECORDER / 'libhvprof.so'}:{other}\n"
    assert totals(hvprof.load(tmp_path / "run").ranks[0]) == {"barrier": (1, 0)}


def test_the_registration_cache_of_mvapich2_is_read(tmp_path: Path) -> None:
    # MVAPICH2 is not to be had here: what it exposes is, in front of another MPI.
    other = tmp_path / "libmvapich.so"
    mpicc = own_mpi() / "mpicc"
    source = PROGRAMS / "mvapich2_counters.c"
    subprocess.run([mpicc, "-shared", "-fPIC", source, "-o", other], check=True)
    program = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
    done = run(
        [*RECORD, "-o", tmp_path / "run", "--", *mpirun(1), sys.executable, "-c", program],
        {**ENVIRONMENT, "LD_PRELOAD": str(other)},
    )
    assert done.returncode == 0, done.stderr
    cache = hvprof.load(tmp_path / "run").ranks[0].registration_cache
    assert cache is not None
    assert (cache.hits, cache.misses) == (750, 250)


@pytest.mark.long
def test_horovod_runs_to_the_same_result(tmp_path: Path) -> None:
    command = ["horovodrun", "-np", "2", sys.executable, PROGRAMS / "horovod_allreduce.py"]
    timeline = tmp_path / "timeline.json"
    recorded = run(
        [*RECORD, "-o", tmp_path / "run", "--", *command],
        {**ENVIRONMENT, "HOROVOD_TIMELINE": str(timeline)},
    )
    # mpirun may tag the middle of a line, which then is no longer one word.
    output = re.sub(r"\[1,\d+\]<std\w+>:", "", recorded.stdout)
    assert re.findall(r"result (\S+)", output) == [result_of_two_ranks()], recorded.stderr
    recording = hvprof.load(tmp_path / "run")
    for rank in recording.ranks:
        data, control = totals(rank), totals(rank, "control")
        assert set(data) == {"allreduce"}
        calls, message_bytes = data["allreduce"]
        assert message_bytes == 20 * (4000 + 8000 + 4000 + 600)
        assert 60 <= calls <= 80
        assert {"allreduce", "gather", "gatherv", "bcast"} <= set(control)
        assert control["allreduce"][0] >= calls / 2
        # Bit vectors of 8 to 16 bytes, and twice that with a timeline.
        assert control["allreduce"][1] <= 32 * control["allreduce"][0]
    # What the timeline tells of the same run, message by message.
    assert import_timeline(timeline, tmp_path / "imported", force=False) == 0
    imported = hvprof.load(tmp_path / "imported")
    assert (imported.size, imported.source) == (2, "timeline")
    assert by_bin(imported.ranks[0]) == by_bin(recording.ranks[0])


def result_of_two_ranks() -> str:
    """What horovod_allreduce.py prints: a sum of two does not depend on their order."""
    drawn = [torch.Generator().manual_seed(rank) for rank in range(2)]
    total = torch.zeros((), dtype=torch.float64)
    for step in range(20):
        reduced = [
            sum(torch.randn(count, generator=rank) for rank in drawn).double().sum()
            for count in (1000, 2000)
        ]
        total += sum(reduced)
        total += 2 * 500 * step
        total += 2 * 300
    return total.item().hex()


def by_bin(rank: hvprof.RankRecording) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for cell in rank.cells:
        if cell.traffic == "data" and cell.operation == "allreduce":
            calls, message_bytes = found.get(cell.low_bytes, (0, 0))
            found[cell.low_bytes] = (calls + cell.calls, message_bytes + cell.message_bytes)
    return found


@pytest.mark.long
def test_the_overhead_benchmark_runs(tmp_path: Path) -> None:
    arguments = ["--calls", "1000", "--samples", "1", "--memory-calls", "100000", "--steps", "100"]
    arguments += ["--json", tmp_path / "overhead.json"]
    done = run([sys.executable, "-m", "benchmarks.profiler_overhead", *arguments])
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "overhead.json").read_text())
    measured = {"overhead_us_per_call", "other_overhead_us_per_call", "overhead_percent", "step_us"}
    assert measured <= set(figures)
    # The trace's ring has 100000 places of 64 bytes; beyond that nothing may grow.
    assert figures["memory_growth_kib"] <= 6250 + 256
