"""The recorder linked with a program by the flags of `hvprof link`, instead of preloaded."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hvprof
from testbed.mpi_programs import compile_for
from tests.support.hvprof.recorded import (
    PROGRAMS,
    RECORD,
    check_known_regions,
    mpirun,
    own_counts,
    own_mpi,
    run,
    totals,
)

_HEADER = f"-I{hvprof.get_include()}"
# Of a program in C that has nothing but MPI linked statically: what Debian's MPICH stands on.
_STATIC = ("-Wl,-Bstatic", "-lmpich", "-Wl,-Bdynamic")
_FORTRAN = ("-Wl,-Bstatic", "-lmpichfort", "-lmpich", "-Wl,-Bdynamic")


def flags(*options: str) -> list[str]:
    done = run([sys.executable, "-m", "hvprof", "link", *options])
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout)


def test_a_program_that_loses_the_preload_is_recorded(tmp_path: Path) -> None:
    program, folder = tmp_path / "known_regions_of_c", tmp_path / "run"
    source = PROGRAMS / f"{program.name}.c"
    compile_for(own_mpi(), *flags(), _HEADER, source, "-o", program)
    lost = ["env", "-u", "LD_PRELOAD", program]
    done = run([*RECORD, "-o", folder, "--", *mpirun(2, own_mpi()), *lost])
    assert done.returncode == 0, done.stderr
    check_known_regions(hvprof.load(folder))
    # Preloaded as well, it counts once; and without a folder the program runs as ever.
    again = tmp_path / "again"
    assert run([*RECORD, "-o", again, "--", *mpirun(2, own_mpi()), program]).returncode == 0
    check_known_regions(hvprof.load(again))
    assert run([*mpirun(2, own_mpi()), program]).returncode == 0


class Static:
    """Debian's MPICH as a static library, and the shared libraries that it stands on."""

    def __init__(self) -> None:
        found, compiler = shutil.which("mpirun.mpich"), shutil.which("mpicc.mpich")
        if found is None or compiler is None:
            pytest.skip("no mpicc.mpich: apt install mpich libmpich-dev")
        self.launcher = found
        library = Path(run([compiler, "-print-file-name=libmpich.so"]).stdout.strip())
        if not library.with_suffix(".a").exists():
            pytest.skip("no libmpich.a: apt install libmpich-dev")
        listed = subprocess.check_output(["ldd", library], text=True)
        places = [line.split()[2] for line in listed.splitlines() if " => /" in line]
        self.needed = [place for place in places if Path(place).name.startswith(("libuc", "libhw"))]

    def build(self, compiler: str, libraries: tuple[str, ...], *words: str | Path) -> None:
        include = run([f"{compiler}.mpich", "-show"]).stdout.split()
        compilers = {"mpicc": "gcc", "mpifort": "gfortran"}
        paths = [word for word in include if word.startswith(("-I", "-L"))]
        command = [compilers[compiler], "-w", *paths, *flags("--static"), *words]
        done = run([*command, *libraries, *self.needed, "-lm"], cwd=Path(words[-1]).parent)
        assert done.returncode == 0, done.stderr

    def record(self, program: Path, folder: Path) -> list[hvprof.RankRecording]:
        command = [self.launcher, "-np", "2", "env", "-u", "LD_PRELOAD", program]
        done = run([*RECORD, "-o", folder, "--", *command], cwd=program.parent)
        assert done.returncode == 0, done.stderr
        return hvprof.load(folder).ranks


@pytest.fixture(scope="module")
def static() -> Static:
    return Static()


def test_calls_of_c_are_counted_once(static: Static, tmp_path: Path) -> None:
    """With large counts and what MPI 4 added, which are entered at once where all is linked."""
    program = tmp_path / "known_mpi4"
    source = PROGRAMS / "known_mpi4.c"
    static.build("mpicc", _STATIC, "-DLARGE", source, "-o", program)
    for rank in static.record(program, tmp_path / "run"):
        assert totals(rank, with_making=True) == own_counts(tmp_path / f"counts-{rank.rank}")


@pytest.mark.parametrize("interface", ["MPIF", "USE_F08"])
def test_calls_of_fortran_are_counted_once(static: Static, interface: str, tmp_path: Path) -> None:
    if shutil.which("mpifort.mpich") is None or shutil.which("gfortran") is None:
        pytest.skip("no mpifort.mpich: apt install gfortran libmpich-dev")
    program = tmp_path / "known_fortran"
    options = ["-fallow-argument-mismatch", "-ffree-line-length-none", "-DFILES", f"-D{interface}"]
    source = PROGRAMS / "known_fortran.F90"
    static.build("mpifort", _FORTRAN, *options, source, "-o", program)
    for rank in static.record(program, tmp_path / "run"):
        assert totals(rank, with_making=True) == own_counts(tmp_path / f"counts-{rank.rank}")


def test_regions_of_c_are_recorded(static: Static, tmp_path: Path) -> None:
    program = tmp_path / "known_regions_of_c"
    static.build("mpicc", _STATIC, _HEADER, PROGRAMS / f"{program.name}.c", "-o", program)
    static.record(program, tmp_path / "run")
    check_known_regions(hvprof.load(tmp_path / "run"))
