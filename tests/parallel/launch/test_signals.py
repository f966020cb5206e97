"""hvd-launch that is interrupted or killed, on real MPI libraries: no process stays."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.launch.on_every_mpi import (
    HERE,
    WAIT,
    alive,
    environment,
    hvd_launch,
    start,
    wait_for,
)

# Ignores what it is asked, as a rank in an exchange without end does.
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAIT
# Takes longer to write its checkpoint than launchers leave a rank that they end.
SAVES = """
import os, signal, sys, time
def save(*_):
    time.sleep(4)
    open(f"{sys.argv[1]}/{os.getpid()} saved", "w").close()
    os._exit(99)
signal.signal(signal.SIGTERM, save)
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
while True: signal.pause()
"""
HANDLES = """
import os, signal, sys
signal.signal(signal.SIGUSR2, lambda *_: os._exit(4))
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
while True: signal.pause()
"""


def test_a_signal_of_the_ranks_own_reaches_them_and_hides_no_failure(
    library: Path, tmp_path: Path
) -> None:
    ranks = (str(library / "python"), "-c", HANDLES, str(tmp_path))
    job = start("run", "-np", "2", "--", *ranks, library=library)
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        job.send_signal(signal.SIGUSR2)  # Hydra ends of it
        _, told = job.communicate(timeout=30)
    finally:
        job.kill()
    assert job.returncode == 4
    assert "exited with code 4" in told


def test_ranks_get_time_after_sigterm_and_the_exit_code_is_theirs(
    library: Path, tmp_path: Path
) -> None:
    ranks = (str(library / "python"), "-c", SAVES, str(tmp_path))
    job = start("run", "-np", "1", "--", *ranks, library=library)
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 1)
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 99, said
    assert "hvd-launch: SIGTERM: the ranks ended the job with code 99" in said
    assert [path for path in tmp_path.iterdir() if path.name.endswith("saved")]


def test_ranks_that_ignore_sigterm_end_after_the_grace(tmp_path: Path) -> None:
    ranks = (sys.executable, "-c", STUBBORN, str(tmp_path))
    job = start("run", "-np", "2", "--grace", "0.5", "--", *ranks, library=HERE)
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 128 + signal.SIGTERM, said


@pytest.mark.parametrize(
    ("how", "program"),
    [(signal.SIGTERM, WAIT), (signal.SIGINT, STUBBORN)],
    ids=["terminate", "ctrl-c and ranks that stay"],
)
def test_an_interrupted_job_leaves_no_process(
    library: Path, tmp_path: Path, how: signal.Signals, program: str
) -> None:
    ranks = (str(library / "python"), "-c", program, str(tmp_path))
    job = start("run", "-np", "2", "--", *ranks, library=library)
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        family = psutil.Process(job.pid).children(recursive=True)
        assert len(family) >= 5  # the launcher, and for each rank its keeper and its program
        job.send_signal(how)
        _, told = job.communicate(timeout=30)
        assert job.returncode == 128 + how
        last = told.splitlines()[-1]
        assert last.startswith(f"hvd-launch: {how.name}: ended the job on all its ranks")
        # No waiting: at its end nothing is left.
        assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    finally:
        job.kill()


def test_a_job_that_is_asked_twice_leaves_no_shared_memory(tmp_path: Path) -> None:
    program = f"from mpi4py import MPI; MPI.COMM_WORLD.barrier(); {STUBBORN}"
    ranks = (sys.executable, "-c", program, str(tmp_path))
    job = start("run", "-np", "2", "--", *ranks, library=HERE)
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        maps = [psutil.Process(int(path.name)).memory_maps() for path in tmp_path.iterdir()]
        shared = {Path(one.path) for each in maps for one in each if "/dev/shm/" in one.path}
        job.send_signal(signal.SIGINT)
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=30)
    finally:
        job.kill()
    assert shared
    assert not [path for path in shared if path.exists()]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGKILL, -9),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.long),
        pytest.param(signal.SIGUSR1, 138, marks=pytest.mark.long),
    ],
)
def test_a_recorded_job_hears_every_signal(how: signal.Signals, code: int, tmp_path: Path) -> None:
    ranks, recording = tmp_path / "ranks", str(tmp_path / "recording")
    ranks.mkdir()
    program = f"from mpi4py import MPI; {WAIT}"
    job = start(
        "run",
        "-np",
        "2",
        "--profile",
        recording,
        "--",
        sys.executable,
        "-c",
        program,
        str(ranks),
        library=HERE,
    )
    try:
        wait_for(lambda: len(list(ranks.iterdir())) == 2)
        family = psutil.Process(job.pid).children(recursive=True)
        job.send_signal(how)
        job.wait(30)
    finally:
        job.kill()
    assert job.returncode == code
    wait_for(lambda: not any(alive(process.pid) for process in family))


def test_a_killed_hvd_launch_leaves_no_process(library: Path, tmp_path: Path) -> None:
    ranks = (str(library / "python"), "-c", WAIT, str(tmp_path))
    job = subprocess.Popen(
        hvd_launch("run", "-np", "2", "--", *ranks),
        env=environment(library),
        start_new_session=True,
    )
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    job.kill()
    job.wait(30)
    wait_for(lambda: not any(alive(int(path.name)) for path in tmp_path.iterdir()))
