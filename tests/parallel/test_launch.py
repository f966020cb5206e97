"""hvd-launch on real MPI libraries: the environment's, and those that `make mpis` made."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(sys.executable).parent
LIBRARIES = {
    "environment": HERE,
    "openmpi5": ROOT / ".venvs" / "openmpi5" / "bin",
    "mpich5": ROOT / ".venvs" / "mpich5" / "bin",
}
# One write for a line: the ranks share standard output.
SUM = """
import os
from mpi4py import MPI
os.write(1, b"sum %d\\n" % MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank))
"""
TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['HVD_EXT_TEST']]))"
# Rank 1 ends with the given code while rank 0 would go on for long.
FAIL = """
import os, sys, time
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    os._exit(int(sys.argv[1]))
time.sleep(100)
"""
WAIT = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(100)"


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Path:
    """The bin folder of an environment with an MPI and mpi4py."""
    folder = LIBRARIES[request.param]
    if not (folder / "python").exists():
        pytest.skip(f"no {folder}: run `make mpis`")
    return folder


def hvd_launch(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hvd_launch", *arguments]


def environment(library: Path, **extra: str) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{library}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'launch'}",
        **extra,
    }


def run(library: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        hvd_launch(*arguments),
        env=environment(library, **extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_starts_every_rank_in_one_job(library: Path, size: int) -> None:
    done = run(library, "run", "-np", str(size), "--", str(library / "python"), "-c", SUM)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"sum {size * (size - 1) // 2}"] * size


def test_named_slots_suffice(library: Path) -> None:
    job = ("run", "-np", "3", "-H", "localhost:3", "--", str(library / "python"), "-c", SUM)
    done = run(library, *job)
    assert done.stdout.splitlines() == ["sum 3"] * 3, done.stderr
    assert "note" not in done.stderr


def test_arguments_and_variables_arrive_as_they_are(library: Path) -> None:
    hostile = [
        "a b",
        "it's",
        '"',
        "$HOME",
        "two\nlines",
        "",
        "*",
        "%h",
        ";",
        "--",
        "-np",
        "ü",
        "\\",
    ]
    value = 'two\nlines; $(id) "q"'
    python = str(library / "python")
    done = run(library, "run", "-np", "1", "--", python, "-c", TELL, *hostile, HVD_EXT_TEST=value)
    assert json.loads(done.stdout) == [hostile, value]


def test_exit_code_is_the_failing_ranks(library: Path) -> None:
    done = run(library, "run", "-np", "2", "--", str(library / "python"), "-c", FAIL, "42")
    assert done.returncode == 42


def test_dry_run_prints_the_command_and_runs_nothing(library: Path, tmp_path: Path) -> None:
    program = [str(library / "python"), "-c", WAIT, str(tmp_path / "a b")]
    done = run(library, "run", "--dry-run", "-np", "2", "--", *program)
    command = shlex.split(done.stdout)
    assert command[0] == shutil.which("mpirun", path=environment(library)["PATH"])
    assert command[-len(program) :] == program
    assert not list(tmp_path.iterdir())


def test_one_machine_needs_no_ssh(library: Path) -> None:
    if not (library / "mpirun").exists():
        pytest.skip(f"the MPI in use is not that of {library}")
    done = run(library, "run", "-np", "2", "--", "/bin/true", PATH=str(library))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_leaves_no_process(
    library: Path, tmp_path: Path, how: signal.Signals
) -> None:
    command = hvd_launch(
        "run", "-np", "2", "--", str(library / "python"), "-c", WAIT, str(tmp_path)
    )
    job = subprocess.Popen(command, env=environment(library), start_new_session=True)
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        job.send_signal(how)
        assert job.wait(30) != 0
        wait_for(lambda: not any(alive(int(path.name)) for path in tmp_path.iterdir()))
    finally:
        job.kill()


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "-np", "2"], "no COMMAND"),
        (["run", "-np", "2", "--"], "no COMMAND"),
        (["run", "-np", "0", "--", "true"], "-np 0"),
        (["run", "-np", "-1", "--", "true"], "-np -1"),
        (["run", "-np", "two", "--", "true"], "'two'"),
        (["run", "-np", "2", "--", "no-such-program"], "'no-such-program' is no command"),
        (["run", "-np", "2", "--", ""], "'' is no command"),
        (["run", "-np", "2", "--", "-c"], "'-c' is no command"),
        (["run", "-np", "2", "-H", "a;b", "--", "true"], "'a;b' is no host"),
        (["run", "-np", "2", "--", "true", ":", "true"], "':'"),
    ],
)
def test_a_request_that_cannot_be_meant(arguments: list[str], complaint: str) -> None:
    done = run(HERE, *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_missing_or_unknown_mpirun_is_one_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(Path(sys.executable).resolve())
    command = [str(python), "-m", "hvd_launch", "run", "-np", "2", "--", "/bin/true"]
    env = environment(tmp_path) | {"PATH": str(tmp_path)}
    missing = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert missing.returncode == 1
    assert missing.stderr.startswith("hvd-launch: error: no mpirun on PATH")

    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'SomeMPI 9.9'\n")
    mpirun.chmod(0o755)
    unknown = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert unknown.returncode == 1
    assert "'SomeMPI 9.9'" in unknown.stderr
    assert len(missing.stderr.splitlines()) == len(unknown.stderr.splitlines()) == 1


def test_help_ends_with_an_example() -> None:
    for arguments in (["--help"], ["run", "--help"]):
        assert run(HERE, *arguments).stdout.splitlines()[-1].startswith("example: hvd-launch run")
