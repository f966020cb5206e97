"""Steps, regions and hooks that hvprof records, on programs whose times are known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import hvprof
from hvd_ext.errors import UsageError
from hvprof.analysis.waiting.wait_time import waiting
from hvprof.cli import main
from hvprof.reporters.formats.perfetto import write_chrome
from tests.support.hvprof.recorded import (
    record,
    record_code,
)

GRADIENT_BYTES = 4000  # the 1000 float32 of a step's allreduce of known_overlap.py


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


def test_gradient_hooks_are_summed_up_for_each_step(tmp_path: Path) -> None:
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
    hooks = next(region for region in rank.regions if region.name == "gradient hooks")
    assert (hooks.kind, hooks.calls) == ("compute", 1)
    first, _ = rank.steps
    assert 0.04 <= hooks.time_s <= first.time_s - 0.05
    assert first.compute_s >= 0.09
    assert first.exposed_s == 0


@pytest.mark.parametrize(
    "library", [pytest.param("horovod.torch", marks=pytest.mark.long), "hvd_ext.torch"]
)
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
        hooks = next(region for region in rank.regions if region.name == "gradient hooks")
        assert hooks.calls == 2  # in one step of 16
        assert 0 < hooks.time_s < rank.all_steps.time_s


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
    hooks, exposed = regions["gradient hooks"], regions["exposed"]
    assert (hooks.calls, exposed.calls) == (1, 10)
    assert 0.01 <= hooks.time_s < 0.02
    assert exposed.time_s >= 0.1


@pytest.mark.long
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
        "    comm.start([(1 - comm.rank, [sent])], [(1 - comm.rank, received)], sent)()\n"
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
