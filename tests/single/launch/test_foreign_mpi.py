"""A rank's program that has loaded another MPI library than its launcher's."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvd_launch.rank.environment import rank_info
from hvd_launch.rank.foreign_mpi import loaded_mpi, looking_for_foreign_mpi, starter_of

# Has a file in its memory, as a library is, and waits.
PROGRAM = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
input()
"""


OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
HYDRA = {"PMI_RANK": "0", "MPI_LOCALRANKID": "0"}
SRUN = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
PMI2 = {**SRUN, "PMI_FD": "5", "PMI_RANK": "0"}
PMIX = {**SRUN, "PMIX_NAMESPACE": "slurm.pmix.1.0"}


@pytest.mark.parametrize(
    ("name", "holds", "started_by", "foreign"),
    [
        ("libmpi.so.12", "MPICH Version:", OPEN_MPI, "mpirun"),
        ("libmpich.so.12.2.2", "MPICH Version:", OPEN_MPI, "mpirun"),
        ("libmpi.so.40", "Open MPI v4.1.8", OPEN_MPI, ""),
        ("libmpi.so.40", "Open MPI v4.1.8", HYDRA, "mpirun"),
        ("libmpi.so.12", "Intel(R) MPI Library", HYDRA, ""),
        ("libmpi.so.12", "MPICH Version:", PMI2, ""),
        ("libmpi.so.40", "Open MPI v4.1.8", PMI2, "srun with PMI"),
        ("libmpi.so.40", "Open MPI v4.1.8", PMIX, ""),
        ("libmpi.so.12", "MPICH Version:", PMIX, "srun with PMIx"),
        ("libmpi.so.12", "MPICH Version: PMIx_Init", PMIX, ""),
        ("libmpi.so.12", "MPICH Version:", SRUN, "srun without PMI"),
        ("libmpi.so.40", "Open MPI v4.1.8", {"HOROVOD_RANK": "0", "HOROVOD_LOCAL_RANK": "0"}, ""),
    ],
)
def test_a_foreign_library_is_reported_once(
    name: str, holds: str, started_by: dict[str, str], foreign: str, tmp_path: Path
) -> None:
    here = rank_info(started_by)
    assert here is not None
    starter = starter_of(here, started_by)
    library = tmp_path / name
    library.write_text(f"ELF {holds}")
    said: list[str] = []
    alone: list[str] = []
    command = [sys.executable, "-c", PROGRAM, str(library)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as program:
        end_s = time.monotonic() + 60
        while loaded_mpi() != library and time.monotonic() < end_s:
            time.sleep(0.02)
        look = looking_for_foreign_mpi(starter, 3, said.append)
        for _ in range(3):
            look()
        looking_for_foreign_mpi(starter, 1, alone.append)()
        program.communicate(b"\n")
    assert len(said) == bool(foreign)
    assert not alone
    for line in said:
        assert line.startswith(f"{foreign} started 3 processes, and each is a job of 1 rank")
        assert f"the program's MPI is another one ({library} is " in line
