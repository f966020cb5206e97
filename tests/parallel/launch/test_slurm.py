"""hvd-launch in an allocation of a real Slurm, started for these tests on this machine alone."""

from __future__ import annotations

import ctypes
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.launch.on_every_mpi import (
    FAIL,
    HERE,
    IN_TEST_OR_LONG,
    LIBRARIES,
    ROOT,
    SUM,
    WAIT,
    alive,
    bin_of,
    wait_for,
)

TOOLS = {
    **dict.fromkeys(("slurmctld", "slurmd", "salloc", "sbatch", "srun"), "slurm-wlm"),
    "munged": "munge",
}
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={other_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# What is queued again starts when the old credential has expired.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MpiDefault=none
ReturnToService=2
KillWait=2
FirstJobId={first_job}
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""
_PR_SET_PDEATHSIG = 1
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/bin:/sbin:/bin"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A Slurm with one node; its configuration file. Nothing of it stays."""
    missing = sorted({p for tool, p in TOOLS.items() if not shutil.which(tool, path=_PATH)})
    if missing:
        pytest.skip(f"no {' and '.join(missing)}: apt install it")
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("an allocation of 2 tasks needs 2 cores")
    # Not pytest's folder: the path of a socket has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="slurm") as name:
        folder = Path(name)
        daemons: list[subprocess.Popen[bytes]] = []
        try:
            conf = _start(folder, daemons)
            yield conf
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in daemons:
                try:
                    daemon.wait(20)
                except subprocess.TimeoutExpired:
                    daemon.kill()
            wait_for(lambda: not _mentioning(name))


def _start(folder: Path, daemons: list[subprocess.Popen[bytes]]) -> Path:
    for part in ("state", "spool"):
        (folder / part).mkdir()
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    conf = folder / "slurm.conf"
    conf.write_text(
        CONFIGURATION.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            port=_free_port(),
            other_port=_free_port(),
            cores=os.cpu_count(),
            # MPICH names shared memory after the job, and a killed job's stays: a second job 1
            # would take it for its own.
            first_job=random.randrange(10**6, 10**7),
        )
    )
    places = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munge.pid"}
    places |= {"log-file": folder / "munge.log", "seed-file": folder / "munge.seed"}
    options = [f"--{option}={path}" for option, path in places.items()]
    for command in (
        ["munged", "--foreground", "--force", *options],
        ["slurmctld", "-D", "-f", str(conf)],
        ["slurmd", "-D", "-f", str(conf)],
    ):
        program = shutil.which(command[0], path=_PATH)
        assert program is not None
        daemons.append(
            subprocess.Popen(
                [program, *command[1:]],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # They end with the tests, whatever ends those.
                preexec_fn=_die_with_parent,
            )
        )
        if command[0] == "munged":
            wait_for((folder / "munge.socket").exists)
    _wait_until_idle(conf)
    return conf


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _slurm(conf: Path, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
    roots = os.pathsep.join(map(str, (ROOT, ROOT / "launch")))
    env = os.environ | {"SLURM_CONF": str(conf), "PATH": _PATH, "PYTHONPATH": roots, **extra}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def _wait_until_idle(conf: Path) -> None:
    end = time.monotonic() + 30
    while (state := _slurm(conf, "sinfo", "-h", "-o", "%T").stdout.strip()) != "idle":
        assert time.monotonic() < end, f"Slurm's node is {state or 'not there'}"
        time.sleep(0.1)


def _mentioning(text: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(text in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(params=IN_TEST_OR_LONG)
def allocated(request: pytest.FixtureRequest, cluster: Path) -> Run:
    """`allocated(*words)` runs a command in an allocation of two tasks, with a library first."""
    folder = bin_of(request.param, "slurm")
    _wait_until_idle(cluster)

    def run(*words: str, tasks: int = 2) -> subprocess.CompletedProcess[str]:
        words = tuple(str(folder / "python") if word == "PYTHON" else word for word in words)
        command = ("salloc", "--quiet", f"--ntasks={tasks}", *words)
        return _slurm(cluster, *command, PATH=f"{folder}:{_PATH}")

    return run


def hvd_launch(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "hvd_launch", *arguments)


@pytest.mark.parametrize("allocated", LIBRARIES, indirect=True)
def test_the_allocation_alone_is_enough(allocated: Run) -> None:
    done = allocated(*hvd_launch("run", "--", "PYTHON", "-c", SUM))
    assert sorted(done.stdout.splitlines()) == ["[0] sum 1", "[1] sum 1"], done.stderr


def test_the_exit_code_and_the_last_lines_are_the_failing_ranks(allocated: Run) -> None:
    done = allocated(*hvd_launch("run", "--", "PYTHON", "-c", FAIL, "raise"))
    assert done.returncode == 42, done.stderr
    lines = done.stderr.splitlines()
    at = lines.index("hvd-launch: rank 1 exited with code 42. Its last lines:")
    assert lines[at + 1].startswith("[1] rank 1 line ")
    assert "[1] last words" in lines[at:]


def test_the_librarys_own_launcher_knows_the_allocation_too(allocated: Run) -> None:
    for launcher in ("mpirun", "hydra"):
        command = hvd_launch("run", "--launcher", launcher, "--", "PYTHON", "-c", SUM)
        done = allocated(*command)
        if "is started by" not in done.stderr:
            assert sorted(done.stdout.splitlines()) == ["[0] sum 1", "[1] sum 1"], done.stderr


def test_srun_starts_the_ranks_where_it_can(cluster: Path) -> None:
    words = hvd_launch("run", "--dry-run", "--bare", "--", "true")
    done = _slurm(cluster, "salloc", "--quiet", "--ntasks=2", *words, PATH=f"{HERE}:{_PATH}")
    can = [
        plugin
        for plugin in ("pmix_v5", "pmix_v4", "pmix_v3")
        if not _slurm(
            cluster, "salloc", "--quiet", "srun", f"--mpi={plugin}", "--test-only", "true"
        ).returncode
    ]
    if not can:
        assert "mpirun" in done.stdout
        pytest.skip("srun has no plugin for Open MPI that it can load: apt install libpmix-dev")
    assert f"srun --mpi={can[0]} --ntasks=2" in done.stdout, done.stderr


def test_a_program_of_an_mpi_that_srun_cannot_start_is_told(cluster: Path) -> None:
    """PMI serves MPICH: each rank of Open MPI is alone."""
    folder, other = bin_of("mpich5", "slurm"), bin_of("openmpi5")
    words = ("salloc", "--quiet", "--ntasks=2", *hvd_launch("run", "--launcher", "srun"))
    program = ("--", str(other / "python"), "-c", SUM)
    _wait_until_idle(cluster)
    done = _slurm(cluster, *words, *program, PATH=f"{folder}:{_PATH}")
    assert sorted(done.stdout.splitlines()) == ["[0] sum 0", "[1] sum 0"], done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "is a job of 1 rank" in line]
    assert said.startswith("hvd-launch: srun with PMI started 2 processes")


def test_more_ranks_than_tasks_is_told(allocated: Run) -> None:
    done = allocated(*hvd_launch("run", "-np", "3", "--", "PYTHON", "-c", SUM))
    assert sorted(done.stdout.splitlines()) == [f"[{r}] sum 3" for r in range(3)], done.stderr
    assert "3 ranks share 2 slots" in done.stderr


def test_exec_finds_its_place_under_srun(cluster: Path) -> None:
    code = "import os; os.write(1, (os.environ['CUDA_VISIBLE_DEVICES'] + '\\n').encode())"
    inside = hvd_launch("exec", "--visibility", "rotate", "--", sys.executable, "-c", code)
    done = _slurm(cluster, "srun", "--ntasks=2", *inside, CUDA_VISIBLE_DEVICES="4,5")
    assert sorted(done.stdout.splitlines()) == ["4,5", "5,4"], done.stderr


@pytest.mark.long
def test_a_batch_script(cluster: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    job = shlex.join(hvd_launch("run", "--", sys.executable, "-c", SUM))
    script.write_text(f"#!/bin/sh\n#SBATCH --ntasks=2\n{job}\n")
    output = tmp_path / "out"
    words = ("sbatch", "--wait", f"--output={output}", str(script))
    done = _slurm(cluster, *words, PATH=f"{HERE}:{_PATH}")
    assert done.returncode == 0, output.read_text()
    assert {"[0] sum 1", "[1] sum 1"} <= set(output.read_text().splitlines())


@pytest.mark.long
def test_a_training_that_is_stopped_is_queued_again_and_goes_on(
    cluster: Path, tmp_path: Path
) -> None:
    """The batch script of docs/guides/launch.md, with a training of its own."""
    (block,) = re.findall(
        r"```bash\n(#!/bin/bash\n#SBATCH [^`]*requeue[^`]*)```",
        (ROOT / "docs" / "guides" / "launch.md").read_text(),
    )
    tiny = ["--synthetic", "--blocks", "1", "--features", "4", "--patch", "8", "--batch-size", "1"]
    tiny += ["--log-every", "1", "--threads", "1", "--steps", "10000000"]
    for old, new in (
        ("ntasks=8", "ntasks=2"),
        ("runs/x2", str(tmp_path)),
        ("--data photographs/train", shlex.join(tiny)),
        ("hvd-launch run -- python", shlex.join(hvd_launch("run", "--", sys.executable))),
    ):
        assert old in block
        block = block.replace(old, new)
    script, log = tmp_path / "job.sh", tmp_path / "log.csv"
    script.write_text(block)
    words = ("sbatch", "--parsable", f"--chdir={ROOT}", f"--output={tmp_path}/out", str(script))
    job = _slurm(cluster, *words, PATH=f"{HERE}:{_PATH}").stdout.strip()
    try:
        wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 3, 60)
        _slurm(cluster, "scancel", "--signal=USR1", "--batch", job)
        wait_for(lambda: "stopped after step" in (tmp_path / "out").read_text(), 60)
        stopped = len(log.read_text().splitlines())
        wait_for(lambda: len(log.read_text().splitlines()) > stopped + 3, 90)
        assert "(SIGUSR1)" in (tmp_path / "out").read_text()
    finally:
        _slurm(cluster, "scancel", job)
        _wait_until_idle(cluster)


def test_an_interrupted_job_leaves_no_process(cluster: Path, tmp_path: Path) -> None:
    words = hvd_launch("run", "--", sys.executable, "-c", WAIT, str(tmp_path))
    env = os.environ | {
        "SLURM_CONF": str(cluster),
        "PATH": f"{HERE}:{_PATH}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'launch'}",
    }
    _wait_until_idle(cluster)
    job = subprocess.Popen(["salloc", "--quiet", "--ntasks=2", *words], env=env)
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        (ours,) = psutil.Process(job.pid).children()
        ours.send_signal(signal.SIGINT)
        assert job.wait(30) != 0
        wait_for(lambda: not any(alive(int(path.name)) for path in tmp_path.iterdir()))
    finally:
        job.kill()
