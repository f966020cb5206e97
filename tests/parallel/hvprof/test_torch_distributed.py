"""What torch.distributed does is recorded with exact counts and bytes, without MPI."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import hvprof
from hvprof.analysis.analysis import Analysis
from tests.programs.c10d.recorded_traffic import FLOATS, STEPS, WIDTH
from tests.support.hvprof.recorded import RECORD, run

PROGRAM = "tests/programs/c10d/recorded_traffic.py"
BYTES = 4 * FLOATS
LAYER_BYTES = 4 * WIDTH * WIDTH
BY_MPI = ["hvd-launch", "run", "-np", "2", "--", sys.executable]
BY_TORCH = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def recorded(tmp_path: Path, part: str, ranks: int = 2, *options: str) -> hvprof.Recording:
    folder = tmp_path / part
    command = [*BY_TORCH, f"--nproc-per-node={ranks}", PROGRAM, part]
    done = run([*RECORD, *options, "-o", folder, "--", *command])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{ranks} ranks recorded in {folder}" in done.stderr
    recording = hvprof.load(folder)
    assert [rank.state for rank in recording.ranks] == ["finalized"] * ranks
    assert all(rank.mpi_library.startswith("PyTorch ") for rank in recording.ranks)
    return recording


@pytest.fixture(scope="module")
def of_ddp(tmp_path_factory: pytest.TempPathFactory) -> hvprof.Recording:
    """5 steps of DDP, with their trace."""
    return recorded(tmp_path_factory.mktemp("recorded"), "ddp", 2, "--trace", "1000")


def counted(
    rank: hvprof.RankRecording, source: str = "torch"
) -> dict[tuple[str, int], tuple[int, int]]:
    """Calls and bytes by operation and number of ranks."""
    found: dict[tuple[str, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for cell in rank.cells:
        if cell.source == "mpi" and source == "hvd_ext":
            continue
        assert (cell.source, cell.traffic) == (source, "data")
        assert cell.algorithm == {"torch": "gloo", "hvd_ext": "shared_memory"}[source]
        calls, count_bytes = found[cell.operation, cell.size]
        found[cell.operation, cell.size] = (calls + cell.calls, count_bytes + cell.message_bytes)
    return dict(found)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_calls_and_bytes_are_exact(tmp_path: Path, ranks: int) -> None:
    recording = recorded(tmp_path, "calls", ranks)
    whole = ranks * BYTES
    everywhere = {
        ("allreduce", ranks): (2, 2 * BYTES),
        ("bcast", ranks): (1, BYTES),
        ("reduce", ranks): (1, BYTES),
        ("allgather", ranks): (2, 2 * whole),
        ("reduce_scatter", ranks): (1, whole),
        ("alltoall", ranks): (1, whole),
        ("gather", ranks): (1, BYTES),
        ("scatter", ranks): (1, BYTES),
        ("barrier", ranks): (1, 0),
    }
    of_0 = {("send", ranks): (1, BYTES), ("allreduce", 1): (1, BYTES)}
    expected = [{**everywhere, **of_0}, {**everywhere, ("recv", ranks): (1, BYTES)}, everywhere]
    assert [counted(rank) for rank in recording.ranks] == expected[:ranks]
    lines = Path(PROGRAM).read_text().splitlines()
    for rank in recording.ranks:
        assert {Path(site.object).name for site in rank.sites} == {Path(PROGRAM).name}
        assert all("dist." in lines[site.line - 1] for site in rank.sites)
        assert sum(site.calls for site in rank.sites) == sum(cell.calls for cell in rank.cells)
    first = Analysis(recording).sites[0]
    assert first.function in {operation for operation, _ in everywhere} | {"send", "recv"}
    names = {one.name: one.ranks for one in recording.ranks[0].communicators if one.id}
    assert names["default_pg"] == f"0-{ranks - 1}" if ranks > 2 else "0-1"


def test_buckets_of_ddp_and_what_it_waits_for_are_recorded(of_ddp: hvprof.Recording) -> None:
    for rank in of_ddp.ranks:
        calls, count_bytes = counted(rank)["allreduce", 2]
        assert count_bytes == STEPS * 3 * LAYER_BYTES
        assert calls > STEPS  # more than one bucket each
        exposed = next(region for region in rank.regions if region.name == "exposed")
        assert exposed.kind == "communication"
        assert exposed.calls >= STEPS
        assert rank.step_count == STEPS - 1  # an optimizer's first step goes by
    assert hvprof.waiting(of_ddp) is not None


@pytest.mark.long
def test_sharded_parameters_are_recorded(tmp_path: Path) -> None:
    recording = recorded(tmp_path, "fsdp")
    for rank in recording.ranks:
        found = counted(rank)
        assert found["reduce_scatter", 2] == (3 * STEPS, 3 * STEPS * LAYER_BYTES)
        assert found["allgather", 2][1] >= 3 * STEPS * LAYER_BYTES


def test_sharded_parameters_that_hvd_ext_serves_are_recorded(tmp_path: Path) -> None:
    recording = recorded(tmp_path, "fsdp_used")
    for rank in recording.ranks:
        found = counted(rank, "hvd_ext")
        assert found["reduce_scatter", 2] == (3 * STEPS, 3 * STEPS * LAYER_BYTES)
        assert found["allgather", 2][1] >= 3 * STEPS * LAYER_BYTES
        exposed = next(region for region in rank.regions if region.name == "exposed")
        assert exposed.calls >= 6 * STEPS


@pytest.mark.parametrize(
    "launcher",
    [BY_MPI, pytest.param([*BY_TORCH, "--nproc-per-node=2"], marks=pytest.mark.long)],
    ids=["mpi", "torchrun"],
)
def test_the_backend_hvd_ext_reports_its_collectives(launcher: list, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [*launcher, PROGRAM, "calls", "hvd_ext"]
    done = run([*RECORD, "-o", folder, "--", *command])
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in hvprof.load(folder).ranks:
        found = counted(rank, "hvd_ext")
        # gather and scatter are carried by it, and reduce by an allreduce.
        assert found["alltoall", 2][0] == 3
        assert found["allreduce", 2] == (3, 3 * BYTES)
        assert found["bcast", 2] == (1, BYTES)
        assert found["allgather", 2] == (2, 4 * BYTES)
        assert found["reduce_scatter", 2] == (1, 2 * BYTES)
        assert found["barrier", 2][0] >= 1


@pytest.mark.long
def test_what_fails_is_not_counted(tmp_path: Path) -> None:
    recording = recorded(tmp_path, "failing")
    assert [counted(rank)["allreduce", 2] for rank in recording.ranks] == [(1, BYTES)] * 2


@pytest.mark.long
def test_steps_that_a_program_marks_are_those_that_count(tmp_path: Path) -> None:
    recording = recorded(tmp_path, "marked")
    assert [rank.step_count for rank in recording.ranks] == [STEPS] * 2


@pytest.mark.parametrize(
    ("part", "says"),
    [
        pytest.param(
            "late",
            r"rank 0 has been in Allreduce 2 of default_pg \(3\.906 KiB\); "
            r"rank 1 \(.*recorded_traffic\.py:\d+ in late[,)]",
            marks=pytest.mark.long,
        ),
        ("late_in_backward", r"rank 0 has been in Allreduce \d+ of default_pg .*; rank 1 \("),
        pytest.param(
            "deadlock",
            r"have waited for each other: .* is in Recv from rank 1",
            marks=pytest.mark.long,
        ),
    ],
)
def test_ranks_that_hang_are_named(tmp_path: Path, part: str, says: str) -> None:
    options = ["-o", tmp_path / "run", "--on-hang", "2", "--abort-on-hang"]
    done = run([*RECORD, *options, "--", *BY_TORCH, "--nproc-per-node=2", PROGRAM, part])
    assert done.returncode == 75, done.stderr
    assert re.search(says, (tmp_path / "run" / "hang.txt").read_text().replace("\n", " "))


def test_a_report_names_what_to_change(of_ddp: hvprof.Recording) -> None:
    hvprof_report = [sys.executable, "-m", "hvprof", "report", str(of_ddp.directory)]
    shown = run([*hvprof_report])
    assert shown.returncode == 0, shown.stderr
    assert "allreduce (gloo)" in shown.stdout
    report = json.loads(run([*hvprof_report, "--json"]).stdout)
    assert "DistributedOptimizer" not in json.dumps(report)


def test_a_process_that_is_not_recorded_is_left_alone() -> None:
    code = (
        "import torch, sys; import torch.distributed as dist;"
        "assert 'hvd_ext.c10d' not in sys.modules; assert dist.Work.wait.__module__ is None"
        " or 'hvd_ext' not in str(dist.Work.wait)"
    )
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
