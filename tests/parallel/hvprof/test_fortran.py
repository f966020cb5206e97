"""hvprof's recorder in programs of Fortran, by each of MPI's interfaces to it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

import hvprof
from hvprof.analysis.waiting.call_costs import call_costs, operation_costs
from hvprof.recording.session import LIBRARY
from tests.support.hvprof.hanging import cause_of, job
from tests.support.hvprof.recorded import (
    ENVIRONMENT,
    PROGRAMS,
    RECORD,
    check_known_regions,
    own_counts,
    run,
    totals,
)
from tests.support.hvprof.watching import PATIENCE_S, WATCH
from tests.support.launch.on_every_mpi import bin_of, wait_for

# mpif.h, `use mpi` and `use mpi_f08`.
INTERFACES = ("MPIF", "USE_MPI", "USE_F08")
_OPTIONS = ("-w", "-fallow-argument-mismatch", "-ffree-line-length-none")


@dataclass(frozen=True)
class Fortran:
    """An MPI library's compiler of Fortran, its launcher, and variables for that."""

    compiler: tuple[str, ...]
    launcher: tuple[str, ...]
    variables: dict[str, str]
    options: tuple[str, ...] = ("-DFILES",)

    def build(self, interface: str, program: Path, *modules: Path) -> None:
        sources = [*modules, PROGRAMS / f"{program.name}.F90"]
        options = (*_OPTIONS, *self.options, f"-D{interface}")
        # The counter's module is written where the compiler runs.
        command = [*self.compiler, *options, *sources, "-o", program]
        subprocess.run(command, cwd=program.parent, check=True)

    def job(
        self, folder: Path, program: Path, how: str
    ) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        ranks = {"launcher": [*self.launcher, "-np", "2"], "variables": self.variables}
        return job(folder, 2, how, program=str(program), python=(), **ranks)


def _of_system(kind: str, *options: str) -> Fortran:
    """A library of Debian's, whose programs have the library's name at their end."""
    compiler, launcher = shutil.which(f"mpifort.{kind}"), shutil.which(f"mpirun.{kind}")
    if compiler is None or launcher is None:
        pytest.skip(f"no mpifort.{kind}: apt install gfortran lib{kind}-dev")
    return Fortran((compiler,), (launcher, *options), {})


def _under_bindings_of_system(name: str, folder: Path) -> Fortran:
    """A library without bindings of Fortran, under those of Debian's MPICH: they share an ABI."""
    mpi, system = bin_of(name), _of_system("mpich")
    (folder / "libmpich.so.12").symlink_to(mpi.parent / "lib" / "libmpi.so.12")
    libraries = f"{folder}{os.pathsep}{mpi.parent / 'lib' / 'mpich'}"
    path = f"{mpi}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "LD_LIBRARY_PATH": libraries}
    options = ("-DFILES",)
    if name == "mvapich2":
        # Built without Fortran, it reduces no types of Fortran, and it lacks MPI_File_*.
        options = ("-DMPI_DOUBLE_PRECISION=MPI_DOUBLE", "-DMPI_INTEGER=MPI_INT")
    return Fortran(system.compiler, (str(mpi / "mpirun"),), variables, options)


_LIBRARIES = ["openmpi", "mpich", "intelmpi"]
_LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("mpich5", "mvapich2")]


@pytest.fixture(params=[*_LIBRARIES, *_LONG])
def fortran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fortran:
    if request.param == "openmpi":
        return _of_system("openmpi", "--allow-run-as-root", "--oversubscribe")
    if request.param == "mpich":
        return _of_system("mpich")
    if request.param != "intelmpi":
        return _under_bindings_of_system(request.param, tmp_path_factory.mktemp("libraries"))
    mpi = bin_of("intelmpi")
    if shutil.which("gfortran") is None:
        pytest.skip("no gfortran: apt install gfortran")
    include = mpi.parent / "include"
    compiler = ("gfortran", f"-I{include}/mpi/gfortran/11.1.0", f"-I{include}")
    libraries = [str(mpi.parent / "lib" / f"lib{name}.so.12") for name in ("mpifort", "mpi")]
    path = {"PATH": f"{mpi}{os.pathsep}{os.environ['PATH']}"}
    # The libraries stand before what needs them, and have no path of their own.
    linked = (*libraries, f"-Wl,-rpath,{mpi.parent / 'lib'}")
    return Fortran((*compiler, "-Wl,--no-as-needed", *linked), (str(mpi / "mpirun"),), path)


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_every_operation_is_counted_once(
    fortran: Fortran, interface: str, size: int, tmp_path: Path
) -> None:
    """Against the program's own counter, with every special address that Fortran has."""
    program = tmp_path / "known_fortran"
    if interface == "USE_F08" and "intelmpi" in fortran.launcher[0]:
        pytest.skip("Intel MPI has this interface for Intel's compiler alone")
    fortran.build(interface, program)
    folder = tmp_path / "run"
    folder.mkdir()
    done = run(
        [*fortran.launcher, "-np", str(size), program],
        {**ENVIRONMENT, **fortran.variables, "HVPROF_DIR": str(folder)}
        | {"LD_PRELOAD": str(LIBRARY)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    ranks = hvprof.load(folder).ranks
    assert [rank.rank for rank in ranks] == list(range(size))
    for rank in ranks:
        assert totals(rank, with_making=True) == own_counts(tmp_path / f"counts-{rank.rank}")
        assert "a name with blanks" in {one.name for one in rank.communicators}
    # Also of messages from any source, whose statuses are ignored or not.
    before, after = size - 1, 1
    assert {(one.direction, one.rank): one.messages for one in ranks[0].partners} == {
        ("to", after): 12,
        ("from", before): 2,
    }
    assert {(one.direction, one.rank): one.messages for one in ranks[1].partners} == {
        ("from", 0): 12,
        ("to", 2 % size): 2,
    }


@pytest.mark.parametrize(
    "interface",
    [INTERFACES[0], *(pytest.param(x, marks=pytest.mark.long) for x in INTERFACES[1:])],
)
def test_a_late_rank_is_waited_for(fortran: Fortran, interface: str, tmp_path: Path) -> None:
    if interface == "USE_F08" and "intelmpi" in fortran.launcher[0]:
        pytest.skip("Intel MPI has this interface for Intel's compiler alone")
    program = tmp_path / "late_fortran"
    fortran.build(interface, program)
    launch = [*fortran.launcher, "-np", "2", program]
    done = run([*RECORD, "-o", tmp_path / "run", "--", *launch], ENVIRONMENT | fortran.variables)
    assert done.returncode == 0, done.stderr
    recording = hvprof.load(tmp_path / "run")
    costs = {cost.operation: cost for cost in operation_costs(recording, call_costs(recording))}
    # Rank 1 sleeps 50 ms before each of 20 sums; a busy machine wakes it later still.
    assert 2 * costs["allreduce"].wait_s >= 0.9


def test_a_program_marks_regions_and_steps(fortran: Fortran, tmp_path: Path) -> None:
    program = tmp_path / "known_regions_of_fortran"
    fortran.build("USE_MPI", program, Path(hvprof.get_include()) / "hvprof.f90")
    command = [*fortran.launcher, "-np", "2", program]
    variables = ENVIRONMENT | fortran.variables
    done = run([*RECORD, "-o", tmp_path / "run", "--", *command], variables)
    assert done.returncode == 0, done.stderr
    check_known_regions(hvprof.load(tmp_path / "run"))
    # It runs without the recorder, too.
    assert run(command, variables).returncode == 0


@pytest.mark.parametrize(
    ("how", "interface", "kind", "said"),
    [
        ("sleeps", "USE_MPI", "late", "rank 0 has been in Allreduce 6 of world (7.812 KiB)"),
        pytest.param(
            *("mismatch", "MPIF", "mismatch", "rank 1 called Bcast as number 6 of world"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("circle", "MPIF", "deadlock", "is in Recv from rank 0"), marks=pytest.mark.long
        ),
    ],
)
def test_the_cause_of_a_hang_is_named(
    fortran: Fortran, how: str, interface: str, kind: str, said: str, tmp_path: Path
) -> None:
    program = tmp_path / "stands_still_fortran"
    fortran.build(interface, program)
    with fortran.job(tmp_path / "run", program, how):
        cause = cause_of(tmp_path / "run", kind)
    assert said in cause.sentence


def test_a_running_program_is_watched(fortran: Fortran, tmp_path: Path) -> None:
    program = tmp_path / "stands_still_fortran"
    fortran.build("USE_MPI", program)
    with fortran.job(tmp_path / "run", program, "sums"):
        wait_for((tmp_path / "run" / "rank-00001.now").exists, PATIENCE_S)
        done = run([*WATCH, tmp_path / "run", "--once", "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    read = json.loads(done.stdout)
    assert [one["rank"] for one in read["ranks"]] == [0, 1]
    assert read["slowest"] == 1
    (sums,) = read["operations"]
    assert sums["operation"] == "allreduce"
    assert sums["bytes_s"] == pytest.approx(8000 * sums["calls_s"])
