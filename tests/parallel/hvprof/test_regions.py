"""Regions, steps and MPI_Pcontrol of programs in C and C++."""

from __future__ import annotations

from pathlib import Path

import pytest

import hvprof
from testbed.mpi_programs import compile_for
from tests.support.hvprof.recorded import (
    PROGRAMS,
    RECORD,
    check_known_regions,
    mpirun,
    own_mpi,
    run,
)


@pytest.mark.parametrize("language", ["c", "c++"])
def test_a_program_marks_regions_and_steps(language: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    source = ["-x", language, PROGRAMS / "known_regions_of_c.c"]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    include = f"-I{hvprof.get_include()}"
    compile_for(own_mpi(), *warnings, include, *source, "-o", program, "-ldl")
    command = [*mpirun(2), program]
    done = run([*RECORD, "-o", tmp_path / "run", "--", *command])
    assert done.returncode == 0, done.stderr
    check_known_regions(hvprof.load(tmp_path / "run"))
    # It runs without the recorder, too.
    assert run(command).returncode == 0
