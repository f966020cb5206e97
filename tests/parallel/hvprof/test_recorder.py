"""hvprof's recorder where ranks differ, where the environment is hostile, and as files grow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hvprof
from hvprof.format.trace import load_trace
from tests.support.hvprof.recorded import (
    ENVIRONMENT,
    PROGRAMS,
    RECORD,
    mpirun,
    own_mpi,
    record_code,
    run,
    totals,
)
from tests.support.launch.on_every_mpi import bin_of

ALLREDUCE = (
    "import numpy; from mpi4py import MPI\n"
    "MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, numpy.ones(1000))\n"
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("absent", "said"),
    [(1, "no trace of rank 1 after 10 s"), (0, "no decision of rank 0 after 20 s")],
)
def test_a_rank_without_the_recorder_does_not_hang_a_traced_job(
    absent: int, said: str, tmp_path: Path
) -> None:
    program = [sys.executable, "-c", ALLREDUCE]
    ranks = [program, program]
    ranks[absent] = ["env", "-u", "LD_PRELOAD", *program]
    command = [*mpirun(1), *ranks[0], ":", "-np", "1", *ranks[1]]
    done = run([*RECORD, "--trace", "10", "-o", tmp_path / "run", "--", *command])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("clocks are not compared") == 1
    assert said in done.stderr
    recording = hvprof.load(tmp_path / "run")
    assert [rank.rank for rank in recording.ranks] == [1 - absent]
    assert totals(recording.ranks[0]) == {"allreduce": (1, 8000)}
    trace = load_trace(recording)
    assert trace is not None
    assert len(trace.ranks[0].events) == 1
    assert sorted(path.name for path in (tmp_path / "run").iterdir() if path.is_symlink()) == []


def test_ranks_without_the_recorder_are_named(tmp_path: Path) -> None:
    program = [sys.executable, "-c", ALLREDUCE]
    command = [*mpirun(1), *program, ":", "-np", "2", "env", "-u", "LD_PRELOAD", *program]
    done = run([*RECORD, "-o", tmp_path / "run", "--", *command])
    assert done.returncode == 0, done.stderr
    assert "hvprof: ranks 1, 2 were not recorded: " in done.stderr
    assert "`hvprof env`" in done.stderr


def test_processes_that_another_mpi_did_not_join_are_noticed(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from mpi4py import MPI"]
    launcher = mpirun(3, bin_of("mpich5"))
    alone = {**ENVIRONMENT, "OMPI_MCA_ess_singleton_isolated": "1"}
    done = run([*RECORD, "-o", tmp_path / "run", "--", *launcher, *program], alone)
    assert done.returncode == 0, done.stderr
    assert (
        "hvprof: mpirun started 3 processes, and each is a job of 1 rank: the program's MPI is"
        " another one, and mpirun is MPICH's; start it with that library's launcher\n"
    ) in done.stderr
    # One after the other is as it was meant to be.
    script = " ".join(map(repr, program))
    done = run([*RECORD, "-o", tmp_path / "turns", "--", "sh", "-c", f"{script}; {script}"], alone)
    assert "2 MPI jobs recorded" in done.stderr
    assert "another one" not in done.stderr


def test_files_that_appear_late_are_waited_for(tmp_path: Path) -> None:
    late = preloaded(
        tmp_path,
        "late",
        "#define _GNU_SOURCE\n"
        "#include <dlfcn.h>\n#include <fcntl.h>\n#include <string.h>\n#include <unistd.h>\n"
        "int open(const char *path, int flags, ...) {\n"
        '    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");\n'
        '    if (strstr(path, "rank-00001.hvprof") && flags & O_CREAT) sleep(2);\n'
        "    return real(path, flags, 0644);\n"
        "}\n",
    )
    command = [*mpirun(2), sys.executable, "-c", ALLREDUCE]
    record = [*RECORD, "--trace", "10", "-o", tmp_path / "run", "--", *command]
    done = run(record, {**ENVIRONMENT, "LD_PRELOAD": str(late)})
    assert done.returncode == 0, done.stderr
    assert "clocks are not compared" not in done.stderr
    first, second = hvprof.load(tmp_path / "run").ranks
    assert second.start_clock_s - first.start_clock_s >= 1


def test_a_trace_that_no_memory_holds_is_refused_on_all_ranks(tmp_path: Path) -> None:
    command = [*mpirun(2), "env", f"HVPROF_TRACE={2**58}", sys.executable, "-c", ALLREDUCE]
    done = run([*RECORD, "-o", tmp_path / "run", "--", *command])
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"rank {rank} has no trace: HVPROF_TRACE is {2**58}, use at most 2^40" in done.stderr
    recording = hvprof.load(tmp_path / "run")
    assert [totals(rank) for rank in recording.ranks] == [{"allreduce": (1, 8000)}] * 2
    assert load_trace(recording) is None


def test_a_thread_is_not_taken_for_one_that_has_ended(tmp_path: Path) -> None:
    program = (
        "import threading, time, hvprof; from mpi4py import MPI\n"
        "handles = []\n"
        "def mark():\n"
        "    handles.append(threading.get_ident())\n"
        "    for _ in range({1: 1}.get(len(handles), 3 * (handles[0] == handles[-1]))):\n"
        "        hvprof.step()\n"
        # glibc gives a thread the stack, and so the pthread_t, of one that has ended.
        "while len(handles) < 2 or handles[0] != handles[-1]:\n"
        "    thread = threading.Thread(target=mark)\n"
        "    thread.start(); thread.join(); time.sleep(0.01)\n"
    )
    (rank,) = record_code(tmp_path / "run", 1, program).ranks
    # The first step of the second thread begins where it first calls.
    assert rank.step_count == 2


def test_a_file_that_grows_keeps_what_is_in_it(tmp_path: Path) -> None:
    # Where glibc emulates posix_fallocate it reads bytes and writes them again.
    watched = preloaded(
        tmp_path,
        "watched",
        "#include <stdio.h>\n#include <string.h>\n#include <sys/stat.h>\n#include <unistd.h>\n"
        "int posix_fallocate(int file, off_t from, off_t bytes) {\n"
        '    char link[64], path[4096] = "";\n'
        "    struct stat found;\n"
        '    snprintf(link, sizeof link, "/proc/self/fd/%d", file);\n'
        "    if (readlink(link, path, sizeof path - 1) < 0 || fstat(file, &found)) return 5;\n"
        '    if (strstr(path, ".hvprof"))\n'
        '        fprintf(stderr, from < found.st_size ? "overlaps\\n" : "grows\\n");\n'
        "    if (from + bytes <= found.st_size) return 0;\n"
        "    return ftruncate(file, from + bytes) ? 5 : 0;\n"
        "}\n",
    )
    program = (
        "import hvprof; from mpi4py import MPI\n"
        "for name in map(str, range(100)):\n"
        "    with hvprof.region(name): pass\n"
    )
    command = [*mpirun(1), sys.executable, "-c", program]
    done = run(
        [*RECORD, "-o", tmp_path / "run", "--", *command],
        {**ENVIRONMENT, "LD_PRELOAD": str(watched)},
    )
    assert done.returncode == 0, done.stderr
    assert "overlaps" not in done.stderr
    assert done.stderr.count("grows") >= 4
    assert len(hvprof.load(tmp_path / "run").ranks[0].regions) == 100


def preloaded(tmp_path: Path, name: str, code: str) -> Path:
    """A library of this code, for LD_PRELOAD behind the recorder."""
    source, library = tmp_path / f"{name}.c", tmp_path / f"lib{name}.so"
    source.write_text(code)
    subprocess.run(
        [own_mpi() / "mpicc", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True
    )
    return library


def test_the_program_of_an_unknown_mpi_runs_unrecorded(tmp_path: Path) -> None:
    """It is passed on word for word, whatever the library's handles are."""
    source, program = PROGRAMS / "strange_mpi.c", tmp_path / "program"
    library = tmp_path / "libstrange.so"
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    command = ["cc", "-DPROGRAM", source, "-o", program, library, f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(command, check=True)
    done = run([*RECORD, "-o", tmp_path / "run", "--", program])
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert done.stderr.splitlines() == [
        "hvprof: nothing was recorded: unknown MPI library Strange MPI 1.0"
    ]


def test_libraries_are_loaded_while_the_recorder_looks_at_them(tmp_path: Path) -> None:
    """The recorder's look and a dlopen wait for the same two locks of the linker."""
    code = (
        "import time, numpy, _ctypes, _decimal; from mpi4py import MPI\n"
        "end_s = time.monotonic() + 4\n"
        "while time.monotonic() < end_s:\n"
        "    for name in (_decimal.__file__, _ctypes.__file__.replace('_ctypes', '_zoneinfo')):\n"
        "        _ctypes.dlclose(_ctypes.dlopen(name, 2))\n"
        "MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, numpy.ones(10))\n"
    )
    assert totals(record_code(tmp_path / "run", 1, code).ranks[0])["allreduce"] == (1, 80)
