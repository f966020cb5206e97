"""hvprof against programs whose traffic is known, through real launches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hvprof
from hvd_ext.errors import UsageError
from hvprof.analysis.wait_time import waiting
from hvprof.cli import main
from hvprof.format.trace import load_trace
from hvprof.importers.horovod_timeline import import_timeline
from hvprof.recording.model import RegistrationCache
from hvprof.reporters.header import warnings
from hvprof.reporters.perfetto import write_chrome
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

GRADIENT_BYTES = 4000  # the 1000 float32 of a step's allreduce of known_overlap.py
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
    assert calls == {"<1 KB": 2 * 607, "1-128 KB": 2 * 3, "128 KB-16 MB": 2 * 2, "16-32 MB": 2}
    assert rows["16-32 MB"]["message_bytes"] == 2 * (2**24 + 1)
    # Over two ranks an allreduce's bus bandwidth is its bandwidth.
    assert rows["16-32 MB"]["busbw_gb_s"] == pytest.approx(rows["16-32 MB"]["algbw_gb_s"])
    text = run([sys.executable, "-m", "hvprof", "report", tmp_path / "run"]).stdout
    assert re.search(r"allreduce +<1 KB +607 ", text)


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


@pytest.fixture(scope="module")
def overlap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of a program whose steps are known, in a folder of its own."""
    folder = tmp_path_factory.mktemp("overlap") / "run"
    record(folder, 2, "known_overlap.py", "--trace", "1000")
    return folder


def test_the_hidden_share_of_communication_is_right(overlap: Path, tmp_path: Path) -> None:
    recording = hvprof.load(overlap)
    known = float(re.findall(r"overlap (\S+)", (overlap / "output.txt").read_text())[0])
    steps = recording.ranks[0].all_steps
    assert steps is not None
    assert steps.index == recording.ranks[0].step_count == len(recording.ranks[0].steps) == 4
    assert steps.overlap_percent == pytest.approx(known, abs=5)
    for step in (steps, *recording.ranks[0].steps):
        parts_s = step.compute_s + step.exposed_s + step.io_s + step.other_s
        assert parts_s == pytest.approx(step.time_s)
        assert step.io_s >= 0.02
        assert step.compute_s >= 0.1
    regions = {region.name: region for region in recording.ranks[0].regions}
    assert {name: (one.kind, one.calls) for name, one in regions.items()} == {
        "read": ("io", 4),
        "backward": ("compute", 4),
        "exposed": ("communication", 4),
        "step": ("other", 4),
    }
    # Rank 1 computes for longer, and rank 0 waits for it.
    found = waiting(recording)
    assert found is not None
    assert [(one.operation, one.calls) for one in found.regions] == [("exposed", 8)]
    assert (found.region_peers[0].rank, found.region_peers[0].waited_for) == (0, 1)
    count = write_chrome(recording, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    calls = [event for event in events if event["ph"] == "X"]
    assert len(calls) == count == sum(rank.trace_calls for rank in recording.ranks)
    assert {event["pid"] for event in calls} == {0, 1}
    tracks = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    assert {event["name"] for event in calls if tracks.get(event["tid"]) == "exposed"} == {
        "exposed"
    }
    # On one track, a call lies in another or beside it.
    for track in {(event["pid"], event["tid"]) for event in calls}:
        ends: list[float] = []
        of_track = [event for event in calls if (event["pid"], event["tid"]) == track]
        for event in sorted(of_track, key=lambda event: (event["ts"], -event["dur"])):
            while ends and ends[-1] <= event["ts"] + 0.001:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 0.001
            ends.append(event["ts"] + event["dur"])


def test_limits_of_a_recorded_program(overlap: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = hvprof.load(overlap)
    sums = recording.all_steps
    assert sums is not None
    assert main(["limits", str(overlap), "--to", "32", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    step = found["step"]
    assert step["step_time_s"] == pytest.approx(sums.time_s / sums.index, rel=1e-6)
    assert found["message_bytes"] == pytest.approx(GRADIENT_BYTES)
    parts = ("compute_s", "exposed_s", "slowed_s", "waiting_s", "io_s", "other_s")
    assert sum(step[name] for name in parts) == pytest.approx(step["step_time_s"], rel=1e-6)
    assert step["compute_s"] == pytest.approx(sums.compute_s / sums.index, rel=0.05)
    # The exchange is as long as one rank is late: rank 0 hides most of it, for as long as it
    # computes, and when compute shrinks that comes to light.
    rows = found["ring"]["strong"]
    assert [row["ranks"] for row in rows] == [2, 4, 8, 16, 32]
    assert rows[-1]["exposed_s"] > rows[0]["exposed_s"]
    assert rows[-1]["speedup"] < 16 < rows[-1]["ranks"]
    assert found["ring"]["rules"]["limit"] in ("exchange", "efficiency")


def test_regions_keep_apart_what_is_easily_mixed_up(tmp_path: Path) -> None:
    rank = record(tmp_path / "run", 1, "known_regions.py").ranks[0]
    calls = {region.name: region.calls for region in rank.regions}
    hostile = next(name for name in calls if "script" in name)
    assert "\x1b" not in hostile
    del calls[hostile]
    # Not the one from before MPI, nor those of the forked child, nor of threads that left
    # without an end, nor the deepest ones.
    assert calls == {"outer": 3, "inner": 3, "failing": 1, "deep": 32, "step": 5}
    first, *_, last = rank.steps
    assert first.compute_s >= 0.01
    assert first.io_s >= 0.02
    parts_s = first.compute_s + first.io_s + first.exposed_s + first.other_s
    assert parts_s == pytest.approx(first.time_s)
    regions = {region.name: region for region in rank.regions}
    assert regions["outer"].time_s >= regions["inner"].time_s
    time_s = next(cell.time_s for cell in rank.cells if cell.operation == "allreduce")
    assert time_s <= last.exposed_s + 1e-6
    assert last.exposed_s <= last.time_s


def test_handing_gradients_over_is_summed_up_for_each_step(tmp_path: Path) -> None:
    program = (
        "import time, hvprof; from mpi4py import MPI\n"
        "from hvd_ext.events import HandingOver\n"
        "def hand_over():\n"
        "    with HandingOver(): time.sleep(0.02)\n"
        "hand_over()\n"  # before the first step
        "hvprof.step()\n"
        "with hvprof.region('backward'):\n"
        "    time.sleep(0.05); hand_over(); hand_over()\n"
        "hvprof.step()\n"
        "hvprof.step()\n"
    )
    (rank,) = record_code(tmp_path / "run", 1, program).ranks
    hooks = next(region for region in rank.regions if region.name == "handing over")
    assert (hooks.kind, hooks.calls) == ("compute", 1)
    first, _ = rank.steps
    assert 0.04 <= hooks.time_s <= first.time_s - 0.05
    assert first.compute_s >= 0.09
    assert first.exposed_s == 0


@pytest.mark.parametrize("library", ["horovod.torch", "hvd_ext.torch"])
def test_what_hooks_take_is_recorded(tmp_path: Path, library: str) -> None:
    program = (
        f"import torch, hvprof, {library} as hvd\n"
        "hvd.init()\n"
        "model = torch.nn.Linear(1000, 1000)\n"
        "optimizer = hvd.DistributedOptimizer(\n"
        "    torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())\n"
        "hvprof.watch_exchange(optimizer)\n"
        "hvprof.step()\n"
        "for _ in range(22):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(1, 1000)).sum().backward()\n"
        "    optimizer.step()\n"
        "    hvprof.step()\n"
    )
    for rank in record_code(tmp_path / "run", 2, program).ranks:
        hooks = next(region for region in rank.regions if region.name == "handing over")
        assert hooks.calls == 2  # in one step of 16
        assert 0 < hooks.time_s < rank.all_steps.time_s


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
    assert re.search(r"warning: ranks? .*1 did not finish", text)
    # The ring has the last 40 of 100 calls.
    trace = load_trace(recording)
    assert trace is not None
    assert [rank.events["number"].tolist() for rank in trace.ranks] == [list(range(61, 101))] * 2
    found = waiting(recording)
    assert found is not None
    assert (found.covered_calls, found.covered_percent) == (80, 40)


def test_a_second_job_does_not_disturb_the_first(tmp_path: Path) -> None:
    twice = (
        f"{' '.join(mpirun(1))} {sys.executable} {PROGRAMS / 'own_reductions.py'}; "
        f"{' '.join(mpirun(1))} {sys.executable} {PROGRAMS / 'known_traffic.py'}"
    )
    done = run([*RECORD, "-o", tmp_path / "run", "--", "sh", "-c", twice])
    assert done.returncode == 0
    assert "rank 0 is not recorded" in done.stderr
    assert "a recording holds one MPI job" in done.stderr
    assert totals(hvprof.load(tmp_path / "run").ranks[0], "transport") == {"allreduce": (4, 16000)}


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
        if cell.traffic == "data":
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
    assert {"overhead_us_per_call", "overhead_percent", "step_us"} <= set(figures)
    # The trace's ring has 100000 places of 64 bytes; beyond that nothing may grow.
    assert figures["memory_growth_kib"] <= 6250 + 256


# An optimizer as Horovod 0.28's: hooks and `synchronize` hand gradients over.
HOROVODS = """
import time, hvprof
from mpi4py import MPI

class Optimizer:
    def _allreduce_grad_async(self):
        time.sleep(0.01)

    def backward(self):
        self._allreduce_grad_async()

    def synchronize(self):
        self._allreduce_grad_async()  # of a parameter that backward did not reach

optimizer = Optimizer()
hvprof.step()
for step in range(10):
    hvprof.watch_exchange(optimizer)
    optimizer.backward()
    optimizer.synchronize()
    hvprof.step()
"""


def test_hooks_count_once_however_often_they_are_watched(tmp_path: Path) -> None:
    (rank,) = record_code(tmp_path / "run", 1, HOROVODS).ranks
    regions = {region.name: region for region in rank.regions}
    hooks, exposed = regions["handing over"], regions["exposed"]
    assert (hooks.calls, exposed.calls) == (1, 10)
    assert 0.01 <= hooks.time_s < 0.02
    assert exposed.time_s >= 0.1


def test_waiting_for_a_halo_is_exposed(tmp_path: Path) -> None:
    program = (
        "import time, torch, hvprof\n"
        "from mpi4py import MPI\n"
        "from hvd_ext.spatial.exchange.communicator import MpiCommunicator\n"
        "comm = MpiCommunicator(MPI.COMM_WORLD)\n"
        "hvprof.step()\n"
        "for _ in range(4):\n"
        "    if comm.rank == 1: time.sleep(0.05)\n"
        "    sent, received = torch.zeros(1000), torch.empty(1000)\n"
        "    comm.start([(1 - comm.rank, sent)], [(1 - comm.rank, received)])()\n"
        "    if comm.rank == 1: time.sleep(0.05)\n"
        "    comm.allreduce(sent)\n"
        "    hvprof.step()\n"
    )
    first, second = record_code(tmp_path / "run", 2, program).ranks
    assert first.all_steps.exposed_s >= 0.35
    assert second.all_steps.exposed_s < 0.2


def test_a_thread_that_only_started_mpi_does_not_communicate(tmp_path: Path) -> None:
    program = (
        "import threading, time, hvprof\n"
        "from mpi4py import MPI\n"
        "ended = threading.Event()\n"
        "def train():\n"
        "    hvprof.step()\n"
        "    for _ in range(5):\n"
        "        time.sleep(0.02)\n"
        "        hvprof.step()\n"
        "    ended.set()\n"
        "threading.Thread(target=train).start()\n"
        "while not ended.is_set(): sum(range(1000))\n"
    )
    (rank,) = record_code(tmp_path / "run", 1, program).ranks
    assert len(rank.steps) == 5
    assert all(step.communicating_s == 0 for step in rank.steps)


def test_steps_of_nothing_but_communication(tmp_path: Path) -> None:
    program = (
        "import hvprof, numpy as np\n"
        "from mpi4py import MPI\n"
        "sent, received = np.ones(1000), np.empty(1000)\n"
        "with hvprof.region('all', kind='communication'):\n"
        "    hvprof.step()\n"
        "    for _ in range(20):\n"
        "        MPI.COMM_WORLD.Allreduce(sent, received)\n"
        "        hvprof.step()\n"
    )
    record_code(tmp_path / "run", 2, program)
    assert main(["report", str(tmp_path / "run")]) == 0
    with pytest.raises(UsageError, match="all of a step is communication"):
        main(["limits", str(tmp_path / "run")])
