"""hvd-launch on real MPI libraries: the environment's, and those that `make mpis` made."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launch.on_every_mpi import (
    HERE,
    LIBRARIES,
    ROOT,
    SUM,
    WAIT,
    bin_of,
    environment,
    hvd_launch,
    on_two_hosts,
    run,
)

TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['HVD_EXT_TEST']]))"
HOST = """
import os, socket
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(1)
os.write(1, f"{socket.gethostname()} {total} {os.environ['HVD_EXT_TEST']!r}\\n".encode())
"""
# A script for torchrun, as far as its environment goes.
TORCHRUN = """
import os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
"""
GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("total", int(total), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_starts_every_rank_in_one_job_and_tells_of_too_few_slots(library: Path) -> None:
    job = ("run", "-np", "3", "-H", "localhost:1", "--", str(library / "python"), "-c", SUM)
    done = run(library, *job)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] sum 3" for rank in range(3)]
    assert "hvd-launch: note: 3 ranks share 1 slot\n" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("mpirun", "python"), [("environment", "mpich5"), ("mpich5", "environment")]
)
def test_ranks_of_another_mpi_are_named(mpirun: str, python: str) -> None:
    program = str(bin_of(python) / "python")
    done = run(bin_of(mpirun), "run", "-np", "2", "--", program, "-c", SUM)
    (line,) = [line for line in done.stderr.splitlines() if "each is a job of 1 rank" in line]
    assert line.startswith("hvd-launch: mpirun started 2 processes")
    assert str(bin_of(python).parent.resolve() / "lib") in line


def test_bare_ranks_are_the_command_itself(library: Path) -> None:
    job = ("run", "--bare", "-np", "2", "-H", "localhost:2", "--", str(library / "python"))
    done = run(library, *job, "-c", SUM)
    assert done.stdout.splitlines() == ["sum 1"] * 2, done.stderr
    assert "note" not in done.stderr


def test_ranks_have_the_variables_of_torchrun(library: Path) -> None:
    job = ("run", "-np", "2", "--", str(library / "python"), "-c", TORCHRUN)
    done = run(library, *job, RANK="7", MASTER_PORT="")
    lines = sorted(done.stdout.splitlines())
    port = lines[0].split()[-1]
    assert lines == [f"[{r}] {r} 2 {r} 2 127.0.0.1 {port}" for r in (0, 1)], done.stderr
    kept = run(library, *job, MASTER_ADDR="somewhere", MASTER_PORT="1234").stdout
    assert kept.count("somewhere 1234") == 2


def test_a_script_for_torchrun_starts_unchanged() -> None:
    done = run(HERE, "run", "-np", "2", "--", sys.executable, "-c", GLOO, OMP_NUM_THREADS="1")
    assert sorted(done.stdout.splitlines()) == ["[0] total 2", "[1] total 2"], done.stderr


@pytest.mark.needs("ucx")
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


@pytest.mark.needs("ucx")
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


def test_dry_run_prints_a_script_and_runs_nothing(library: Path, tmp_path: Path) -> None:
    program = [str(library / "python"), "-c", WAIT, str(tmp_path / "a b")]
    job = ("run", "--dry-run", "--bare", "--gpus", "4", "-np", "2", "--", *program)
    done = run(library, *job)
    *settings, line = done.stdout.splitlines()
    command = shlex.split(line)
    mpirun = shutil.which("mpirun", path=environment(library)["PATH"])
    assert mpirun is not None
    # Intel's is a shell script: what it calls is started.
    assert Path(command[0]).parent == Path(mpirun).parent
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
    others = {"intelmpi": "FI_MR_CACHE_MONITOR", "mvapich2": "MV2_CUDA_IPC"}
    name = others.get(library.parent.name, "UCX_RCACHE_ENABLE")
    done = run(library, *job, **{name: "n\nid"})
    assert f"export {name}" not in done.stdout
    assert f'# {name} is kept: "n\\nid"' in done.stdout


@pytest.mark.needs("no PATH")
def test_one_machine_needs_no_ssh(library: Path) -> None:
    if not (library / "mpirun").exists():
        pytest.skip(f"the MPI in use is not that of {library}")
    done = run(library, "run", "-np", "2", "--", "/bin/true", PATH=str(library))
    assert done.returncode == 0, done.stderr


@pytest.mark.long
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
        pytest.param("environment", "pin", ["6", "7"], marks=pytest.mark.long),
        ("environment", "rotate", ["6,7", "7,6"]),
        pytest.param("environment", "all", ["6,7", "6,7"], marks=pytest.mark.long),
        pytest.param("openmpi5", "split", ["6", "7"], marks=pytest.mark.long),
        ("mpich5", "auto", ["6,7", "7,6"]),
    ],
)
def test_each_rank_sees_its_gpus(name: str, strategy: str, seen: list[str]) -> None:
    library = bin_of(name)
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    job = ("run", "-np", "2", "--visibility", strategy, "--", str(library / "python"), "-c", code)
    done = run(library, *job, CUDA_VISIBLE_DEVICES="6,7")
    assert sorted(done.stdout.splitlines()) == [f"[{r}] {seen[r]}" for r in (0, 1)]


@pytest.mark.needs("network")
def test_a_job_on_two_emulated_hosts(library: Path) -> None:
    with on_two_hosts(library) as (enter, hosts, variables):
        ranks = (str(library / "python"), "-c", HOST)
        done = subprocess.run(
            [*enter, *hvd_launch("run", "-np", "2", "-H", hosts, "--", *ranks)],
            env=environment(library, **variables, HVD_EXT_TEST="two\nlines; $(id)"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    value = repr("two\nlines; $(id)")
    assert sorted(done.stdout.splitlines()) == [f"[{r}] host{r} 2 {value}" for r in (0, 1)]


def test_a_job_is_recorded(tmp_path: Path) -> None:
    recording = tmp_path / "a b"
    job = ("run", "-np", "2", "--profile", str(recording), "--", sys.executable, "-c", SUM)
    done = run(HERE, *job)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] sum 1", "[1] sum 1"]
    assert len(list(recording.glob("rank-*.hvprof"))) == 2


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
