"""hvprof hang on jobs that hang, and on one that writes while it is read."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from hvd_ext.system.process import descendants
from hvprof.format.current import read_current
from tests.support.hvprof.hanging import PATIENCE_S, cause_of, job, standing
from tests.support.hvprof.recorded import mpirun, run
from tests.support.launch.on_every_mpi import alive, wait_for


@pytest.mark.parametrize(
    ("how", "size", "kind", "ranks", "said"),
    [
        ("sleeps", 4, "late", (3,), "ranks 0 to 2 have been in Allreduce 6 of world (7.812 KiB)"),
        ("stopped", 2, "stopped", (1,), "is stopped"),
        ("mismatch", 2, "mismatch", (0, 1), "rank 1 called Bcast as number 6 of world"),
        ("circle", 4, "deadlock", (0, 1, 2, 3), "is in Recv from rank 0"),
        ("fence", 3, "late", (1,), "ranks 0 and 2 have been in Win_fence; rank 1 "),
        ("any source", 2, "any_source", (0, 1), "no other rank is left to send"),
        ("probes", 2, "late", (1,), "has been in Iprobe from rank 1 with tag 8"),
        pytest.param("killed", 3, "gone", (1,), "is gone", marks=pytest.mark.long),
        pytest.param("chain", 4, "late", (3,), "ranks 0 and 1 wait, too", marks=pytest.mark.long),
        pytest.param("failed call", 2, "late", (0,), "Allreduce 6 of", marks=pytest.mark.long),
        pytest.param("finalizes", 3, "mismatch", (1,), "called Finalize", marks=pytest.mark.long),
    ],
)
def test_the_cause_is_named(
    how: str, size: int, kind: str, ranks: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    with job(tmp_path / "run", size, how):
        cause = cause_of(tmp_path / "run", kind)
        assert cause.ranks == ranks
        assert said in cause.sentence
        done = run([sys.executable, "-m", "hvprof", "hang", tmp_path / "run", "--longer-than", "1"])
        assert (done.returncode, done.stderr) == (75, "")
        assert said in done.stdout


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("tags", "deadlock", "rank 1 has sent rank 0 64 B with tag 7, which it has not received"),
        ("loads", "late", " at slow_samples.py:15 in "),
    ],
)
def test_the_command_says_more(how: str, kind: str, said: str, tmp_path: Path) -> None:
    if how == "loads" and not (Path(sys.executable).parent / "py-spy").exists():
        pytest.skip("py-spy is not installed")
    with job(tmp_path / "run", 2, how):
        cause_of(tmp_path / "run", kind)
        # The worker process may not have come to its sample yet.
        wait_for(lambda: said in _hang(tmp_path / "run"), PATIENCE_S)
        text = _hang(tmp_path / "run")
    if how == "loads":
        assert "stands_still.py:" in text
        assert ", waits for its worker process " in text
    else:
        assert "is in Recv from rank 1 with tag 8" in text


def _hang(folder: Path) -> str:
    command = [sys.executable, "-m", "hvprof", "hang", folder, "--longer-than", "1"]
    return str(run(command).stdout)


def test_a_watched_job_reports_the_cause_once(tmp_path: Path) -> None:
    with job(tmp_path / "run", 2, "sleeps", "--on-hang", "2") as started:
        report = tmp_path / "run" / "hang.txt"
        end_s = time.monotonic() + PATIENCE_S
        while not report.exists() and time.monotonic() < end_s:
            time.sleep(0.2)
        assert "rank 0 has been in Allreduce 6 of world" in report.read_text()
        time.sleep(2)
        os.kill(started.pid, signal.SIGTERM)
        said = started.communicate(timeout=60)[1].decode()
    assert said.count("hvprof: the job hangs: for ") == 1


def test_a_job_that_hangs_is_ended_where_asked(tmp_path: Path) -> None:
    """Also what a launcher leaves behind that is a shell script."""
    folder = tmp_path / "run"
    launcher = ["sh", "-c", '"$@" & wait', "sh", *mpirun(2)]
    options = ("--on-hang", "2", "--abort-on-hang")
    with job(folder, 2, "stopped", *options, launcher=launcher) as started:
        wait_for(lambda: sum(bool(one.pid) for one in standing(folder)) == 2, PATIENCE_S)
        pids = descendants(started.pid)
        said = started.communicate(timeout=PATIENCE_S)[1].decode()
    assert started.returncode == 75
    assert len(pids) >= 3
    wait_for(lambda: not any(map(alive, pids)))
    assert "hvprof: the job hangs: for " in said
    done = run([sys.executable, "-m", "hvprof", "report", folder])
    assert "ended because it hung: for " in done.stdout
    assert "is stopped" in done.stdout


def test_no_torn_slot_is_read_while_a_job_writes(tmp_path: Path) -> None:
    numbers = set()
    with job(tmp_path / "run", 2, "writes"):
        end_s = time.monotonic() + PATIENCE_S
        while len(numbers) < 200 and time.monotonic() < end_s:
            for number in (0, 1):
                current = read_current(tmp_path / "run" / f"rank-{number:05d}.now")
                for slot in current.slots if current else ():
                    if slot["number"] > 5:
                        assert slot["bytes"] == 8 * ((slot["number"] - 6) % 7 + 1)
                        numbers.add(slot["number"].item())
    assert len(numbers) >= 200
