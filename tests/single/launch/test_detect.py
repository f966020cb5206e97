"""Which mpirun is taken where several MPI libraries are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_launch.backends.detect import find_backend

OPENMPI, HYDRA, MPICH = (
    "mpirun (Open MPI) 4.1.4",
    "HYDRA build details:\n    Version:      4.0.2",
    "MPICH Version:      4.0.2",
)
# As Debian installs both: /etc/alternatives decides whose mpirun is.
DEBIAN = {
    "mpirun": OPENMPI,
    "mpirun.openmpi": OPENMPI,
    "mpirun.mpich": HYDRA,
    "mpichversion": MPICH,
}
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240701"


def program(path: Path, says: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a PATH that has nothing else."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name, says in DEBIAN.items():
        program(tmp_path / "bin" / name, says)
    return tmp_path / "bin"


def test_a_library_is_found_by_debians_name(debian: Path) -> None:
    found = find_backend("mpich")
    assert (found.version, found.launcher) == ((4, 0, 2), "hydra")
    assert found.program == str(debian / "mpirun.mpich")
    assert find_backend().program == find_backend("openmpi4").program == str(debian / "mpirun")
    program(debian / "mpirun", HYDRA)
    assert find_backend().name == "mpich"
    found = find_backend("openmpi4")
    assert (found.version, found.launcher) == ((4, 1, 4), "mpirun")
    assert found.program == str(debian / "mpirun.openmpi")


def test_mpiexec_serves_where_there_is_no_mpirun(debian: Path) -> None:
    (debian / "mpirun.mpich").rename(debian / "mpiexec.mpich")
    found = find_backend("mpich")
    assert (found.launcher, found.program) == ("hydra", str(debian / "mpiexec.mpich"))


def test_a_library_further_on_the_path_is_found(
    debian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "intel" / "mpirun", INTEL)
    monkeypatch.setenv("PATH", f"{debian}:{tmp_path / 'intel'}")
    found = find_backend("intelmpi")
    assert found.version == (2021, 13)
    assert found.program.startswith(str(tmp_path / "intel"))


def test_a_library_that_is_not_here_is_only_named(debian: Path) -> None:
    assert "/" in find_backend().program
    assert find_backend("mvapich2").program == "mpirun_rsh"
