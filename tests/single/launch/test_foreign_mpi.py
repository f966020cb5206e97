"""A rank's program that has loaded another MPI library than its launcher's."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvd_launch.rank.foreign_mpi import loaded_mpi, looking_for_foreign_mpi

# Has a file in its memory, as a library is, and waits.
PROGRAM = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
input()
"""


@pytest.mark.parametrize(
    ("name", "holds", "family", "foreign"),
    [
        ("libmpi.so.12", "MPICH Version:", "openmpi", True),
        ("libmpich.so.12.2.2", "MPICH Version:", "openmpi", True),
        ("libmpi.so.40", "Open MPI v4.1.8", "openmpi", False),
        ("libmpi.so.40", "Open MPI v4.1.8", "mpich", True),
        ("libmpi.so.12", "Intel(R) MPI Library", "mpich", False),
    ],
)
def test_a_foreign_library_is_reported_once(
    name: str, holds: str, family: str, foreign: bool, tmp_path: Path
) -> None:
    library = tmp_path / name
    library.write_text(f"ELF {holds}")
    said: list[str] = []
    alone: list[str] = []
    command = [sys.executable, "-c", PROGRAM, str(library)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as program:
        end_s = time.monotonic() + 60
        while loaded_mpi() != library and time.monotonic() < end_s:
            time.sleep(0.02)
        look = looking_for_foreign_mpi(family, 3, said.append)
        for _ in range(3):
            look()
        looking_for_foreign_mpi(family, 1, alone.append)()
        program.communicate(b"\n")
    assert len(said) == foreign
    assert not alone
    for line in said:
        assert line.startswith("mpirun started 3 processes, and each is a job of 1 rank")
        assert f"the program's MPI is another one ({library} is " in line
