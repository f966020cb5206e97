"""Requests that cannot be meant: one clear line, and the exit code of a wrong request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_ext.errors import UsageError
from hvd_launch.cli import main

ROOT = Path(__file__).resolve().parents[3]


def environment(**variables: str) -> dict[str, str]:
    return {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'launch'}", **variables}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "-np", "2"], "no COMMAND"),
        (["run", "-np", "2", "--"], "no COMMAND"),
        (
            ["run", "-np", "2", "python", "train.py", "--lr", "1"],
            "-- is missing before the command: hvd-launch run -np 2 -- python train.py --lr 1",
        ),
        (["run", "--typo", "-np", "2", "python", "train.py"], "unrecognized arguments: --typo"),
        (["tune", "fusion", "-np", "2", "python", "x.py"], "fusion -np 2 -- python x.py"),
        (["run", "--", "true"], "missing number of ranks"),
        (["run", "-np", "0", "--", "true"], "-np 0"),
        (["run", "-np", "-1", "--", "true"], "-np -1"),
        (["run", "-np", "99999999999999999999", "--", "true"], "at most 9999999"),
        (["run", "-np", "two", "--", "true"], "'two'"),
        (["run", "-np", "2", "--", "no-such-program"], "'no-such-program': command not found"),
        (["run", "-np", "2", "--", ""], "'': command not found"),
        (["run", "-np", "2", "--", "-c"], "'-c': command not found"),
        (["run", "-np", "2", "-H", "a;b", "--", "true"], "invalid host 'a;b'"),
        (["run", "-np", "2", "-H", "$(id):2", "--", "true"], "invalid host '$(id):2'"),
        (["run", "-np", "2", "-H", "no-such-host.invalid:2", "--", "true"], "cannot resolve host"),
        (["run", "-np", "2", "--hostfile", "/no/such", "--", "true"], "/no/such"),
        (["run", "-np", "2", "--hostfile", "/dev/null", "--", "true"], "names no host"),
        (["run", "-np", "2", "-H", "a", "--hostfile", "b", "--", "true"], "not allowed with"),
        (["run", "-np", "2", "--bare", "--", "true", ":", "true"], "':'"),
        (["run", "-np", "2", "--table", "/no/such", "--", "true"], "/no/such"),
        (["run", "-np", "2", "--gpus", "-1", "--", "true"], "--gpus -1"),
        (["run", "-np", "2", "--json", "--", "true"], "--dry-run"),
        (["run", "-np", "2", "--prof", "x", "--", "true"], "--prof"),
        (["run", "--backend", "mpich", "--launcher", "mpirun", "-np", "2", "--", "true"], "hydra"),
        (["exec", "--"], "no COMMAND"),
        (["env", "--", "true"], "runs no command"),
        (["env", "--backend", "lam"], "'lam'"),
        (["doctor", "-np", "0"], "-np 0"),
    ],
)
def test_a_request_that_cannot_be_meant(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((UsageError, SystemExit)) as raised:
        main(arguments)
    if isinstance(raised.value, UsageError):
        said = str(raised.value)
        assert len(said.splitlines()) == 1
    else:
        assert raised.value.code == 2
        said = capsys.readouterr().err.splitlines()[-1]
    assert complaint in said


def test_a_process_that_is_no_rank_is_told_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hvd_launch", "exec", "true"],
        env=environment(PATH=os.defpath),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("hvd-launch: error: not started by a launcher")
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_or_unknown_mpirun_is_one_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(Path(sys.executable).resolve())
    command = [str(python), "-m", "hvd_launch", "run", "-np", "2", "--", "/bin/true"]
    env = environment(PATH=str(tmp_path))
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
