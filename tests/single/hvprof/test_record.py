"""hvprof record around programs that start no MPI, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.hvprof.made_recordings import write_job

ROOT = Path(__file__).resolve().parents[3]
HVPROF = [sys.executable, "-m", "hvprof"]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "profiling")]),
}


def hvprof(*arguments: str | Path) -> subprocess.CompletedProcess:
    command = [*HVPROF, *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_a_command_without_mpi_says_so(tmp_path: Path) -> None:
    done = hvprof("record", "-o", tmp_path / "run", "--", "echo", "hello")
    assert done.returncode == 0
    assert done.stdout == "hello\n"
    assert "called neither MPI nor torch.distributed" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_program_that_calls_mpi_unseen_is_told_why(tmp_path: Path) -> None:
    """Fortran's name of MPI_Init; no MPI is needed to see that the program would call one."""
    source, program = tmp_path / "solver.c", tmp_path / "solver"
    source.write_text("void mpi_init_(int *code) { *code = 0; }\nint main(void) { return 0; }\n")
    without_preload = ["env", "-u", "LD_PRELOAD", program]
    for options, command, why in (
        (["-static"], [program, "input.txt"], "it is linked statically; link it with the flags"),
        ([], without_preload, "LD_PRELOAD is lost by sudo"),
    ):
        subprocess.run(["cc", *options, source, "-o", program], check=True)
        done = hvprof("record", "--force", "-o", tmp_path / "run", "--", *command)
        assert done.returncode == 0
        assert f"solver calls MPI, and nothing was recorded: {why}" in done.stderr.replace(
            "the recorder was not loaded: ", ""
        )
        assert "torch" not in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_exit_code_is_the_commands(tmp_path: Path) -> None:
    done = hvprof("record", "-o", tmp_path / "run", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert (meta["exit_code"], meta["command"]) == (7, ["sh", "-c", "exit 7"])
    killed = hvprof("record", "-o", tmp_path / "killed", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 128 + 9


@pytest.mark.parametrize("name", ["mpirun", "mpirun.openmpi"])
def test_open_mpis_launcher_is_asked_to_pass_the_recorder_on(name: str, tmp_path: Path) -> None:
    launcher = tmp_path / name
    launcher.write_text('#!/bin/sh\necho "$0 (Open MPI) 4.1.8" "$@"\n')
    launcher.chmod(0o755)
    done = hvprof("record", "-o", tmp_path / "run", "--", launcher, "-np", "2", "true")
    assert "-x LD_PRELOAD" in done.stdout
    assert done.stdout.rstrip().endswith("-np 2 true")


def test_a_termination_reaches_the_command(tmp_path: Path) -> None:
    program = "trap 'exit 5' TERM; touch started; while :; do sleep 0.05; done"
    running = subprocess.Popen(
        [*HVPROF, "record", "-o", "run", "--", "sh", "-c", program], env=ENVIRONMENT, cwd=tmp_path
    )
    while not (tmp_path / "started").exists():
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=20) == 5
    assert json.loads((tmp_path / "run" / "meta.json").read_text())["exit_code"] == 5


@pytest.mark.parametrize("command", [[], ["--"], ["--", "no-such-command"]])
def test_a_command_that_cannot_run_leaves_nothing(command: list[str], tmp_path: Path) -> None:
    done = hvprof("record", "-o", tmp_path / "run", *command)
    assert done.returncode == 2
    assert "command not found" in done.stderr
    assert not (tmp_path / "run").exists()


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "thesis.txt").write_text("years")
    for arguments in ([work], [work, "--force"], [work / "thesis.txt"]):
        done = hvprof("record", "-o", *arguments, "--", "true")
        assert done.returncode == 2, done.stderr
        assert (work / "thesis.txt").read_text() == "years"


def test_a_recording_is_replaced_only_by_force(tmp_path: Path) -> None:
    hvprof("record", "-o", tmp_path, "--", "sh", "-c", "exit 3")
    (tmp_path / "rank-00009.hvprof").write_text("of the earlier job")
    (tmp_path / "notes.txt").write_text("mine")
    refused = hvprof("record", "-o", tmp_path, "--", "true")
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert (tmp_path / "rank-00009.hvprof").exists()
    assert hvprof("record", "--force", "-o", tmp_path, "--", "sh", "-c", "exit 4").returncode == 4
    assert not (tmp_path / "rank-00009.hvprof").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = hvprof("record", "-o", tmp_path / "file" / "run", "--", "true")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_left_changes_no_exit_code(tmp_path: Path) -> None:
    fast, slow = (
        write_job(tmp_path / name, 2, speed=speed) for name, speed in (("fast", 1), ("slow", 2))
    )
    limit = ["--max-regression", "5"]
    for code, *arguments in (
        (0, "report", fast),
        (0, "check", fast, fast, *limit),
        (1, "check", fast, slow, *limit, "--json"),
    ):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [*HVPROF, *map(str, arguments)], env=ENVIRONMENT, stdout=write, stderr=subprocess.PIPE
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (code, b""), arguments


def test_errors_of_report_and_compare_are_one_line(tmp_path: Path) -> None:
    for arguments in (["report", tmp_path], ["compare", tmp_path, tmp_path / "absent"]):
        done = hvprof(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("hvprof: error: ")
        assert len(done.stderr.splitlines()) == 1


def test_another_program_can_start_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    planned = hvprof("env", "-o", folder, "--trace", "10", "--json", "--dry-run")
    assert not folder.exists()
    done = hvprof("env", "-o", folder, "--trace", "10", "--json", "--", "python", "train.py")
    assert done.stdout == planned.stdout
    variables = json.loads(done.stdout)
    assert (variables["HVPROF_DIR"], variables["HVPROF_TRACE"]) == (str(folder), "10")
    assert Path(variables["LD_PRELOAD"].split(":")[0]).name == "libhvprof.so"
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["command"], meta["duration_s"]) == (["python", "train.py"], None)
    refused = hvprof("env", "-o", folder)
    assert (refused.returncode, refused.stdout) == (2, "")
    script = hvprof("env", "-o", folder, "--force").stdout
    assert f"export HVPROF_DIR={folder}\n" in script
    closed = hvprof("close", folder, "--exit-code", "7")
    assert closed.returncode == 0
    assert "the job called neither MPI nor torch.distributed" in closed.stderr
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["exit_code"] == 7
    assert meta["duration_s"] >= 0
    # The code is the job's, whether it started MPI or not.
    assert hvprof("close", folder).returncode == 0
    assert hvprof("close", tmp_path).returncode == 2


SECRET = "hunter2"


SECRETIVE = [
    ["mpirun", "-x", f"WANDB={SECRET}", "-x", "PATH", "python", "train.py"],
    ["mpiexec", "-genv", "WANDB", SECRET, "-env", "lower", SECRET, "python", "train.py"],
    ["job", f"--env=wandb={SECRET}", "--env", f"wandb={SECRET}", "python", "train.py"],
    ["srun", f"--export=ALL,wandb={SECRET}", "python", "train.py"],
    ["env", f"http_proxy=http://me:{SECRET}@host", "python", "train.py"],
    ["mpirun_rsh", "-np", "2", f"wandb={SECRET}", f"B={SECRET}", "./program"],
    ["python", "train.py", "--api-key", SECRET, f"--hf_token={SECRET}", f"password={SECRET}"],
    ["sh", "-c", f"export KEY='a {SECRET}'; x={SECRET} mpirun python t.py --token {SECRET}"],
    ["sh", "-c", f"mpirun -x wandb={SECRET} -genv A {SECRET} python train.py"],
]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.long] * (number % 2 == 1))
        for number, command in enumerate(SECRETIVE)
    ],
)
def test_secrets_stay_out_of_what_is_shared(command: list[str], tmp_path: Path) -> None:
    write_job(tmp_path / "earlier", 2, command=tuple(command))
    assert hvprof("env", "-o", tmp_path / "run", "--", *command).returncode == 0
    meta = (tmp_path / "run" / "meta.json").read_text()
    assert len(json.loads(meta)["command"]) == len(command)
    # A recording that an earlier version made shows none either.
    page = tmp_path / "a.html"
    assert hvprof("report", tmp_path / "earlier", "--html", page).returncode == 0
    for text in (meta, page.read_text()):
        assert "***" in text
        assert SECRET not in text


def test_settings_that_are_no_secrets_stay_readable(tmp_path: Path) -> None:
    command = ["python", "train.py", "--lr=0.1", "--max-tokens", "5", "--tokenizer", "x", "lr=0.1"]
    assert hvprof("env", "-o", tmp_path / "run", "--", *command).returncode == 0
    assert json.loads((tmp_path / "run" / "meta.json").read_text())["command"] == command
