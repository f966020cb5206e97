"""`hvd-launch tune` from the command line: what it refuses, and its help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hvd_launch.backends.libraries import Backend
from hvd_launch.simulate.platform import Platform, dump

OPENMPI4 = Backend("openmpi4", (4, 1, 8), "mpirun", "mpirun")
OPENMPI5 = Backend("openmpi5", (5, 0, 11), "mpirun", "mpirun")


def tune(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hvd_launch", "tune", *arguments]
    root = Path(__file__).resolve().parents[3]
    env = {"PYTHONPATH": f"{root}:{root / 'launch'}", "PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("allreduce -np 1", "at least 2 ranks"),
        ("allreduce -np 0", "at least 1 rank"),
        ("allreduce -np 2 -- true", "runs no command"),
        ("allreduce -np 2 --least 8MiB --most 4MiB", "ascending"),
        ("allreduce -np 2 --least 5KiB --most 6KiB", "no power of two"),
        ("allreduce -np 2 --least many", "'many'"),
        ("allreduce -np 2 --rounds 1", ">= 2"),
        ("allreduce -np 2 --pairs 1", ">= 2"),
        ("allreduce -np 2 -H a;b", "invalid host 'a;b'"),
        ("allreduce -np 4 -H localhost:2", "2 slots"),
        ("allreduce -np 2 -o file", "not a folder"),
        ("fusion -np 2", "no COMMAND"),
        ("fusion -np 2 --", "no COMMAND"),
        ("fusion -np 2 -- no-such-program", "'no-such-program': command not found"),
        ("fusion -np 2 --trials 3 -- true", ">= 6"),
        ("fusion -np 2 --seconds 0 -- true", "above 0"),
        ("fusion -np 2 --seconds inf -- true", "above 0"),
        ("fusion -np 2 -o /proc/x -- true", "/proc/x"),
        ("allreduce -np 99999999999999999999", "at most"),
        ("fusion -np 2 --rate speed -- true", "in a group"),
        ("fusion", "-np"),
        ("", "KIND"),
    ],
)
def test_a_request_that_cannot_be_meant(arguments: str, complaint: str, tmp_path: Path) -> None:
    if not (Path(sys.executable).parent / "mpirun").exists():
        pytest.skip("no mpirun beside this Python: the MPI is asked for first")
    (tmp_path / "file").touch()
    done = tune(*arguments.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_fusion_is_not_tuned_over_what_is_set(tmp_path: Path) -> None:
    for name in ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_AUTOTUNE"):
        done = tune("fusion", "-np", "1", "--", "true", cwd=tmp_path, **{name: "1"})
        assert done.returncode == 2, done.stderr
        assert f"unset {name}" in done.stderr.splitlines()[-1]
        assert not list(tmp_path.iterdir())


def test_help_ends_with_an_example(tmp_path: Path) -> None:
    for kind in ("allreduce", "fusion"):
        last = tune(kind, "--help", cwd=tmp_path).stdout.splitlines()[-1]
        assert last.startswith(f"example: hvd-launch tune {kind} ")


def test_a_plan_fits_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "platform.json").write_text(dump(Platform()))
    asked = ["--simulate", "platform.json", "--library", "openmpi4", "--dry-run", "-np", "2"]
    done = tune("allreduce", *asked, "--nodes", "64,4096", cwd=tmp_path, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert "4096 x 1" in done.stdout
    assert max(map(len, done.stdout.splitlines())) == 80


def test_a_result_that_could_not_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    if not (Path(sys.executable).parent / "mpirun").exists():
        pytest.skip("no mpirun beside this Python: the MPI is asked for first")
    for kind, name in (("allreduce", "settings.sh"), ("fusion", "fusion.json")):
        (tmp_path / "tuning" / name).mkdir(parents=True)
        command = ["--", "true"] if kind == "fusion" else []
        done = tune(kind, "-np", "2", *command, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert f"cannot write tuning/{name}: it is a folder" in done.stderr
        assert not list((tmp_path / "tuning").glob("*.jsonl"))
