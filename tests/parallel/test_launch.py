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

from testbed.emulated_hosts import INTERFACE, EmulationError, emulated_hosts

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(sys.executable).parent
LIBRARIES = {
    "environment": HERE,
    "openmpi5": ROOT / ".venvs" / "openmpi5" / "bin",
    "mpich5": ROOT / ".venvs" / "mpich5" / "bin",
}
# One write for a line: under --bare the ranks share standard output.
SUM = """
import os
from mpi4py import MPI
os.write(1, b"sum %d\\n" % MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank))
"""
TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['HVD_EXT_TEST']]))"
# Rank 1 ends as it is told while rank 0 would go on for long.
FAIL = """
import os, signal, sys, time
from mpi4py import MPI
comm, how = MPI.COMM_WORLD, sys.argv[1]
for number in range(30):
    print("rank", comm.rank, "line", number)
if comm.rank == 1:
    print("last words")
    time.sleep(0.5)
    if how == "abort":
        comm.Abort(43)
        time.sleep(60)  # MPICH's may return before the launcher has ended the rank
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.excepthook = lambda *error: (print("ValueError: boom", file=sys.stderr), os._exit(42))
    raise ValueError("boom")
while True:
    print("rank 0 goes on")
    time.sleep(0.05)
"""
WAIT = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(100)"
# Ignores what it is asked, as a rank in an exchange without end does.
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAIT
PIECES = """
import os, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
for number in range(20):
    os.write(1, b"line %d " % number)
    time.sleep(0.001)
    os.write(1, b"of rank %d\\n" % rank)
"""
# Every byte but those that end a line, long lines, and no end at last, all ranks at once.
WILD = """
import os
from mpi4py import MPI
comm = MPI.COMM_WORLD
block = bytes(byte for byte in range(256) if byte not in b"\\r\\n")
for number in range(200):
    os.write(1, b"%d %d " % (comm.rank, number) + block + b"\\n")
    os.write(2, b"error of %d: %d\\n" % (comm.rank, number))
    if number % 20 == 0:
        os.write(1, b"long" * 5000 + b"\\n")
        comm.Barrier()
os.write(1, b"no end")
"""
HANDLES = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: os._exit(4))
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
while True: signal.pause()
"""
HOST = """
import os, socket
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(1)
os.write(1, f"{socket.gethostname()} {total} {os.environ['HVD_EXT_TEST']!r}\\n".encode())
"""


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
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'launch'}{os.pathsep}{ROOT / 'profiling'}",
        **extra,
    }


def start(*arguments: str, library: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        hvd_launch(*arguments),
        env=environment(library),
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(library: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        hvd_launch(*arguments),
        env=environment(library, **extra),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=100,
        check=False,
    )


def test_starts_every_rank_in_one_job(library: Path) -> None:
    done = run(library, "run", "-np", "3", "--", str(library / "python"), "-c", SUM)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] sum 3" for rank in range(3)]


def test_bare_ranks_are_the_command_itself(library: Path) -> None:
    job = ("run", "--bare", "-np", "2", "-H", "localhost:2", "--", str(library / "python"))
    done = run(library, *job, "-c", SUM)
    assert done.stdout.splitlines() == ["sum 1"] * 2, done.stderr
    assert "note" not in done.stderr


def test_a_line_written_in_pieces_is_whole(library: Path) -> None:
    done = run(library, "run", "-np", "2", "--", str(library / "python"), "-c", PIECES)
    expected = [f"[{rank}] line {line} of rank {rank}" for rank in (0, 1) for line in range(20)]
    assert sorted(done.stdout.splitlines()) == sorted(expected)


def test_lines_of_ranks_that_print_at_once_are_whole_and_in_order(library: Path) -> None:
    command = hvd_launch("run", "-np", "4", "--", str(library / "python"), "-c", WILD)
    done = subprocess.run(
        command, env=environment(library), capture_output=True, timeout=100, check=True
    )
    block = bytes(byte for byte in range(256) if byte not in b"\r\n")
    for rank in range(4):
        told, said = b"", b""
        for number in range(200):
            told += b"%d %d " % (rank, number) + block
            told += b"long" * 5000 if number % 20 == 0 else b""
            said += b"error of %d: %d" % (rank, number)
        for stream, expected in ((done.stdout, told + b"no end"), (done.stderr, said)):
            start = b"[%d] " % rank
            lines = [line for line in stream.split(b"\n") if line.startswith(start)]
            assert b"".join(line.removeprefix(start) for line in lines) == expected


def test_what_is_kept_is_told(library: Path) -> None:
    variables = {"OMPI_MCA_pml": "ob1", "MPIR_CVAR_CH4_NETMOD": "ofi"}
    done = run(library, "run", "--ucx", "-np", "1", "--", "true", **variables)
    assert done.returncode == 0, done.stderr
    kept = "MPIR_CVAR_CH4_NETMOD" if library.parent.name == "mpich5" else "OMPI_MCA_pml"
    assert f"hvd-launch: keeps your {kept} (" in done.stderr


def test_nothing_in_the_working_folder_is_in_the_way(library: Path, tmp_path: Path) -> None:
    for name in ("select", "signal", "token", "json", "hvd_ext"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken for another')")
    done = subprocess.run(
        [str(HERE / "hvd-launch"), "run", "-np", "2", "--", "/bin/echo", "ok"],
        cwd=tmp_path,
        env=environment(library),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert sorted(done.stdout.splitlines()) == ["[0] ok", "[1] ok"], done.stderr


def test_a_signal_of_the_ranks_own_reaches_them_and_hides_no_failure(
    library: Path, tmp_path: Path
) -> None:
    ranks = (str(library / "python"), "-c", HANDLES, str(tmp_path))
    job = start("run", "-np", "2", "--", *ranks, library=library)
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        job.send_signal(signal.SIGUSR1)
        _, told = job.communicate(timeout=30)
    finally:
        job.kill()
    assert job.returncode == 4
    assert "exited with code 4" in told


def test_through_ucx(library: Path) -> None:
    job = ("run", "--ucx", "-np", "2", "--", str(library / "python"), "-c", SUM)
    done = run(library, *job, OMPI_MCA_pml_base_verbose="10", MPIR_CVAR_DEBUG_SUMMARY="1")
    assert "[0] sum 1" in done.stdout.splitlines(), done.stderr
    told = done.stdout + done.stderr
    assert "component ucx selected" in told or "UCX netmod Capability" in told


def test_arguments_and_variables_arrive_as_they_are(library: Path) -> None:
    hostile = ["a b", "it's", '"', "$HOME", "two\nlines", "", "*", "%h", ";", "--", "-np", "ü"]
    hostile += ["\\", "`id`", "a:b", "[0] x"]
    value = 'two\nlines; $(id) "q"'
    python = str(library / "python")
    for bare in ([], ["--bare"]):
        job = ("run", *bare, "-np", "1", "--", python, "-c", TELL, *hostile)
        done = run(library, *job, HVD_EXT_TEST=value)
        assert json.loads(done.stdout.removeprefix("[0] ")) == [hostile, value]


@pytest.mark.parametrize(("how", "code"), [("raise", 42), ("kill", 137), ("abort", 43)])
def test_the_failing_ranks_last_lines_come_first(library: Path, how: str, code: int) -> None:
    done = run(library, "run", "-np", "2", "--", str(library / "python"), "-c", FAIL, how)
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    if how == "abort" and "which rank failed" in lines[-1]:
        # Its mpiexec ends at once, and mostly loses what the rank said of it.
        assert (library / "mpichversion").exists()
        return
    at = next(i for i, line in enumerate(lines) if line.startswith("hvd-launch: rank 1 "))
    report = [line for line in lines[at + 1 :] if line.startswith("[1] ")]
    assert lines[at + 1] == report[0]
    assert "[1] last words" in report
    assert ("[1] ValueError: boom" in report) == (how == "raise")
    assert not any(line.startswith("[0] ") for line in lines[at:])
    # What the launcher says comes after, except of an abort, which it tells before it ends.
    if how != "abort":
        assert not any("---" in line or "===" in line for line in lines[:at])
    assert "\x1e" not in done.stdout + done.stderr


def test_dry_run_prints_a_script_and_runs_nothing(library: Path, tmp_path: Path) -> None:
    program = [str(library / "python"), "-c", WAIT, str(tmp_path / "a b")]
    job = ("run", "--dry-run", "--bare", "--gpus", "4", "-np", "2", "--", *program)
    done = run(library, *job)
    *settings, line = done.stdout.splitlines()
    command = shlex.split(line)
    assert command[0] == shutil.which("mpirun", path=environment(library)["PATH"])
    assert command[-len(program) :] == program
    for position, text in enumerate(settings):
        if text.startswith("export "):
            assert settings[position - 1].startswith("# default: ")
    assert not list(tmp_path.iterdir())
    named = json.loads(run(library, *job[:2], "--json", *job[2:]).stdout)
    assert named["argv"] == command
    assert {"name", "value", "default", "why", "source"} == set(named["settings"][0])


def test_what_a_person_has_set_is_kept(library: Path) -> None:
    job = ("run", "--dry-run", "--gpus", "4", "-np", "2", "--", "true")
    done = run(library, *job, UCX_RCACHE_ENABLE="n\nid")
    assert "export UCX_RCACHE_ENABLE" not in done.stdout
    assert '# UCX_RCACHE_ENABLE is yours: "n\\nid"' in done.stdout


def test_one_machine_needs_no_ssh(library: Path) -> None:
    if not (library / "mpirun").exists():
        pytest.skip(f"the MPI in use is not that of {library}")
    done = run(library, "run", "-np", "2", "--", "/bin/true", PATH=str(library))
    assert done.returncode == 0, done.stderr


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
        assert told.splitlines()[-1].startswith(f"hvd-launch: {how.name}: the job was ended")
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
    [(signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGUSR1, 138), (signal.SIGKILL, -9)],
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


def test_a_reader_that_leaves_ends_the_job(library: Path) -> None:
    endless = "import time\nwhile True: print('x' * 99); time.sleep(0.001)"
    job = [*hvd_launch("run", "-np", "2", "--", str(library / "python"), "-c", endless)]
    line = f"{shlex.join(job)} | head -n 1"
    done = subprocess.run(
        ["sh", "-c", line], env=environment(library), capture_output=True, text=True, timeout=60
    )
    assert done.stdout.endswith("] " + "x" * 99 + "\n")


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


def test_horovodrun_starts_it_inside_each_rank() -> None:
    horovodrun = HERE / "horovodrun"
    if not horovodrun.exists():
        pytest.skip("Horovod is not installed")
    code = "import os, horovod.torch as hvd; hvd.init(); l = hvd.local_rank(); "
    code += "os.write(1, f'{l}:{os.environ[\"CUDA_VISIBLE_DEVICES\"]}\\n'.encode())"
    inside = (str(HERE / "hvd-launch"), "exec", "--visibility=rotate", sys.executable, "-c", code)
    done = subprocess.run(
        [str(horovodrun), "-np", "2", *inside],
        env=environment(HERE, CUDA_VISIBLE_DEVICES="4,5", OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line.rpartition(">:")[2] for line in done.stdout.splitlines()) == [
        "0:4,5",
        "1:5,4",
    ]


@pytest.mark.parametrize(
    ("name", "strategy", "seen"),
    [
        ("environment", "pin", ["6", "7"]),
        ("environment", "rotate", ["6,7", "7,6"]),
        ("environment", "all", ["6,7", "6,7"]),
        ("openmpi5", "split", ["6", "7"]),
        ("mpich5", "auto", ["6,7", "7,6"]),
    ],
)
def test_each_rank_sees_its_gpus(name: str, strategy: str, seen: list[str]) -> None:
    library = LIBRARIES[name]
    if not (library / "python").exists():
        pytest.skip(f"no {library}: run `make mpis`")
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    job = ("run", "-np", "2", "--visibility", strategy, "--", str(library / "python"), "-c", code)
    done = run(library, *job, CUDA_VISIBLE_DEVICES="6,7")
    assert sorted(done.stdout.splitlines()) == [f"[{r}] {seen[r]}" for r in (0, 1)]


@pytest.mark.parametrize("name", ["environment", "openmpi5"])
def test_a_job_on_two_emulated_hosts(name: str) -> None:
    library = LIBRARIES[name]
    if not (library / "python").exists():
        pytest.skip(f"no {library}: run `make mpis`")
    try:
        with emulated_hosts(2, gbit=1) as hosts:
            agent = str(ROOT / "testbed" / "enter_host.sh")
            variables = {
                **hosts.environment(),
                "OMPI_MCA_plm_rsh_agent": agent,
                "PRTE_MCA_plm_ssh_agent": agent,
                "OMPI_MCA_btl_tcp_if_include": INTERFACE,
                "OMPI_MCA_btl": "^openib,ofi,uct,usnic",
                "OMPI_MCA_pml": "ob1",
                "HVD_EXT_TEST": "two\nlines; $(id)",
            }
            enter = ["nsenter", "-t", str(hosts.pids[-1]), "--uts", "--net"]
            places = ",".join(f"{host}:1" for host in hosts.names)
            ranks = (str(library / "python"), "-c", HOST)
            done = subprocess.run(
                [*enter, *hvd_launch("run", "-np", "2", "-H", places, "--", *ranks)],
                env=environment(library, **variables),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
    except EmulationError as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr
    value = repr("two\nlines; $(id)")
    assert sorted(done.stdout.splitlines()) == [f"[{r}] host{r} 2 {value}" for r in (0, 1)]


def test_a_horovod_job_on_open_mpi_5() -> None:
    """horovodrun 0.28.1 cannot start one."""
    library = ROOT / ".venvs" / "openmpi5-horovod" / "bin"
    if not (library / "python").exists():
        pytest.skip(f"no {library}: run `make mpi5-horovod`")
    code = "import torch, horovod.torch as hvd; hvd.init(); "
    code += "print(hvd.mpi_enabled(), hvd.allreduce(torch.tensor([hvd.rank() + 1.0])).item())"
    job = ("run", "-np", "2", "--", str(library / "python"), "-c", code)
    done = run(library, *job, OMP_NUM_THREADS="1")
    assert sorted(done.stdout.splitlines()) == ["[0] True 1.5", "[1] True 1.5"], done.stderr


def test_a_job_is_recorded(tmp_path: Path) -> None:
    recording = tmp_path / "a b"
    job = ("run", "-np", "2", "--profile", str(recording), "--", sys.executable, "-c", SUM)
    done = run(HERE, *job)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] sum 1", "[1] sum 1"]
    assert len(list(recording.glob("rank-*.hvprof"))) == 2


def test_more_ranks_than_slots_is_told(library: Path) -> None:
    job = ("run", "-np", "3", "-H", "localhost:1", "--", str(library / "python"), "-c", SUM)
    done = run(library, *job)
    assert len(done.stdout.splitlines()) == 3, done.stderr
    assert "hvd-launch: note: 3 ranks share 1 slots" in done.stderr


def test_paths_with_a_blank(tmp_path: Path) -> None:
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    for name in ("hvd_ext", "launch"):
        (checkout / name).symlink_to(ROOT / name)
    (checkout / "train it.py").write_text(SUM)
    path = os.pathsep.join([str(checkout), str(checkout / "launch")])
    done = run(
        HERE, "run", "-np", "2", "--", sys.executable, checkout / "train it.py", PYTHONPATH=path
    )
    assert sorted(done.stdout.splitlines()) == ["[0] sum 1", "[1] sum 1"], done.stderr
