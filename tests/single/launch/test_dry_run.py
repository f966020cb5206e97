"""`--dry-run` prints what is run: its script, run by a shell, starts the same with the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_ext.system.freed_memory import VARIABLES

ROOT = Path(__file__).resolve().parents[3]
# Stands for Open MPI's: says its version, or writes down how it was started.
MPIRUN = """#!{python}
import json, os, sys
if sys.argv[1:] == ["--version"]:
    print("mpirun (Open MPI) 4.1.8")
else:
    told = {{"argv": sys.argv[1:], "environ": dict(os.environ)}}
    open(os.environ["TOLD"], "w").write(json.dumps(told))
    sys.exit(3)
"""
# A shell's own.
SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}


def started(command: list[str], environ: dict[str, str], told: Path) -> tuple[int, object]:
    done = subprocess.run(command, env={**environ, "TOLD": str(told)}, check=False)
    found = json.loads(told.read_text())
    found["environ"] = {n: v for n, v in found["environ"].items() if n not in SHELL | {"TOLD"}}
    return done.returncode, found


@pytest.mark.parametrize("options", [[], ["--ucx", "--gpus", "2"], ["--bare"], ["--profile"]])
def test_what_is_printed_is_what_is_run(options: list[str], tmp_path: Path) -> None:
    recording = tmp_path / "a recording"
    if "--profile" in options:
        if not list((ROOT / "profiling").rglob("libhvprof.so")):
            pytest.skip("the recorder is not built")
        options = ["--profile", str(recording)]
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "mpirun").write_text(MPIRUN.format(python=sys.executable))
    (bin_ / "mpirun").chmod(0o755)
    roots = (ROOT, ROOT / "launch", ROOT / "profiling")
    environ = {
        "PATH": f"{bin_}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "OMP_NUM_THREADS": "1",
        "HOROVOD_CYCLE_TIME": "a $b 'c'",
    }
    run = [sys.executable, "-m", "hvd_launch", "run", "-np", "2", *options]
    job = ["--", "echo", "two words", "$HOME"]
    printed = subprocess.run(
        [*run, "--dry-run", *job], env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert not recording.exists()
    really = started([*run, *job], environ, tmp_path / "run")
    shutil.rmtree(recording, ignore_errors=True)
    script = started(["sh", "-c", printed], environ, tmp_path / "script")
    assert really == script
    assert really[0] == 3
    assert ("HVPROF_DIR" in really[1]["environ"]) == ("--profile" in options)  # type: ignore[index]


def test_a_folder_that_holds_something_else_is_not_recorded_into(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    run = [sys.executable, "-m", "hvd_launch", "run", "-np", "1", "--profile", str(tmp_path)]
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "launch", ROOT / "profiling")))
    done = subprocess.run(
        [*run, "--", "true"], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--profile" in done.stderr
    assert "Traceback" not in done.stderr


def exported(**variables: str) -> set[str]:
    """Names of what a job of Open MPI would have set for it, all of a dry run's script."""
    run = [sys.executable, "-m", "hvd_launch", "run", "--backend", "openmpi4", "--gpus", "0"]
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "launch")))
    done = subprocess.run(
        [*run, "-np", "2", "--dry-run", "--", "python", "train.py"],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    # What is set, or was set already, reaches ranks on other hosts.
    assert all(f"-x {name}" in lines[-1] for name in variables)
    return {line.partition("=")[0] for line in lines if line.startswith("export ")}


def test_ranks_keep_the_memory_they_free_unless_malloc_was_set() -> None:
    always = {"export OMPI_MCA_mpi_yield_when_idle", "export OMPI_MCA_btl_tcp_eager_limit"}
    assert exported() == always | {f"export {name}" for name in VARIABLES}
    assert exported(HVD_EXT_KEEP_MEMORY="0") == always
    assert exported(MALLOC_ARENA_MAX="2") == always
    assert exported(GLIBC_TUNABLES="glibc.malloc.hugetlb=1") == always
