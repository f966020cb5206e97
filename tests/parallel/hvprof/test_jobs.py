"""A command that starts several MPI jobs makes a recording of each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hvprof
from tests.support.hvprof.recorded import PROGRAMS, PYTHON, RECORD, mpirun, run, totals


def job(ranks: int, program: str) -> str:
    return " ".join(map(str, [*mpirun(ranks), *PYTHON, PROGRAMS / program]))


def test_jobs_that_follow_each_other_are_recorded_apart(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    jobs = (job(1, "own_reductions.py"), job(2, "killed_rank.py"), job(2, "known_traffic.py"))
    script = "; ".join([*jobs, "exit 3"])
    done = run([*RECORD, "--trace", "40", "-o", folder, "--", "sh", "-c", script])
    assert done.returncode == 3
    assert f"3 MPI jobs recorded in {folder}" in done.stderr
    assert f"hvprof report {folder / '2'}  (2 ranks)" in done.stderr
    first, second, third = (hvprof.load(folder / str(number)) for number in (1, 2, 3))
    assert totals(first.ranks[0], "transport") == {"allreduce": (4, 16000)}
    assert [totals(rank)["allreduce"] for rank in second.ranks] == [(100, 400000)] * 2
    assert [rank.state for rank in third.ranks] == ["finalized"] * 2
    # A rank that was killed does not say when.
    assert second.duration_s is None
    assert first.duration_s is not None
    assert third.duration_s is not None
    assert first.start_unix_s + first.duration_s <= third.start_unix_s
    assert "--trace" not in first.command
    assert (first.exit_code, third.exit_code) == (None, None)
    assert json.loads((folder / "meta.json").read_text())["exit_code"] == 3
    # Nothing but recordings is left, and no link.
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2", "3", "meta.json"]
    assert not any(path.is_symlink() for path in folder.rglob("*"))


@pytest.mark.long
def test_a_folder_of_jobs_is_named_in_errors_and_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    script = f"{job(1, 'own_reductions.py')}; {job(1, 'own_reductions.py')}"
    record = [*RECORD, "-o", folder]
    assert run([*record, "--", "sh", "-c", script]).returncode == 0
    refused = run([sys.executable, "-m", "hvprof", "report", folder])
    assert refused.returncode == 2
    assert f"holds 2 recordings: name one of them ({folder}/1, {folder}/2)" in refused.stderr
    kept = folder / "1" / "notes.txt"
    kept.write_text("of the user")
    assert run([*record, "--", "sh", "-c", script]).returncode == 2
    again = run([*record, "--force", "--", "sh", "-c", job(2, "known_traffic.py")])
    assert again.returncode == 0, again.stderr
    assert f"2 ranks recorded in {folder}: hvprof report {folder}" in again.stderr
    assert len(hvprof.load(folder).ranks) == 2
    assert kept.read_text() == "of the user"
    assert not (folder / "2").exists()


def test_spawned_processes_are_a_job_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = run([*RECORD, "-o", folder, "--", "sh", "-c", job(1, "spawns.py")])
    assert done.returncode == 0, done.stderr
    parent, children = hvprof.load(folder / "1"), hvprof.load(folder / "2")
    assert totals(parent.ranks[0])["allreduce"] == (1, 8)
    assert [totals(rank)["allreduce"] for rank in children.ranks] == [(3, 24)] * 2
