"""An installation for a site, as one who has neither a compiler nor an mpicc has it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import hvprof
from hvd_ext import __version__
from tests.support.hvprof.recorded import ROOT, mpirun, totals
from tests.support.launch.on_every_mpi import LIBRARIES, bin_of

pytestmark = pytest.mark.long
_SITE = ROOT / "toolchain" / "site"
_COMPILERS = re.compile(r"mpi(cc|cxx|c\+\+|f|g|i).*|cc|c89|c99|c\+\+|.*(gcc|g\+\+|clang|fort).*")
_PROGRAM = """
import numpy as np
from mpi4py import MPI
for _ in range(7):
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, np.ones(3))
MPI.COMM_WORLD.Barrier()
"""


@dataclass(frozen=True)
class Site:
    """The folder of an installation, the modulefile, and the environment of its users."""

    prefix: Path
    modulefile: Path
    environment: dict[str, str]

    def hvprof(self, *arguments: str | Path, mpi: Path | None = None) -> str:
        command = [self.prefix / "bin" / "hvprof", *map(str, arguments)]
        path = f"{mpi or ''}{os.pathsep}{self.environment['PATH']}"
        done = subprocess.run(
            command,
            env=self.environment | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def link_programs(folder: Path, *places: Path) -> Path:
    """A folder with the programs of others, except compilers."""
    folder.mkdir()
    for place in places:
        for program in place.iterdir():
            if not (folder / program.name).exists() and not _COMPILERS.fullmatch(program.name):
                (folder / program.name).symlink_to(program)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Built with what this machine has, and installed without a compiler, an MPI and a network."""
    folder = tmp_path_factory.mktemp("site")
    builder = [sys.executable, _SITE / "bundle.py", folder]
    subprocess.run(builder, check=True)
    (archive,) = folder.glob("hvprof-*.tar.gz")
    subprocess.run(["tar", "xf", archive, "-C", folder], check=True)
    programs = link_programs(folder / "programs", Path("/usr/bin"), Path("/bin"))
    environment = {"PATH": str(programs), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    environment |= {"MV2_ENABLE_AFFINITY": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    installer = folder / f"hvprof-{__version__}" / "install.py"
    prefix, modulefiles = folder / "sw" / "hvprof", folder / "modulefiles"
    command = [sys.executable, installer, prefix, "--modulefiles", modulefiles]
    subprocess.run(command, env=environment, check=True)
    return Site(prefix, modulefiles / "hvprof" / __version__, environment)


def test_users_get_the_commands_and_headers_alone(site: Site) -> None:
    assert {path.name for path in (site.prefix / "bin").iterdir()} == {"hvprof", "hvd-launch"}
    headers = {path.name for path in (site.prefix / "include").iterdir()}
    assert headers == {"hvprof.f90", "hvprof.h"}
    said = site.modulefile.read_text()
    assert said.startswith("#%Module1.0\n")
    assert f"prepend-path PATH {site.prefix}/bin\n" in said
    assert f"prepend-path CPATH {site.prefix}/include\n" in said
    assert __version__ in site.hvprof("--version")
    python = site.prefix / "venv" / "bin" / "python"
    packages = subprocess.check_output([python, "-m", "pip", "list"], text=True)
    assert not re.search("torch|horovod", packages)


def test_recipes_name_this_version() -> None:
    easybuild = _SITE / "easybuild" / f"hvprof-{__version__}.eb"
    assert f"version = '{__version__}'" in easybuild.read_text()
    spack = (_SITE / "spack" / "packages" / "hvprof" / "package.py").read_text()
    assert f'version("{__version__}")' in spack
    assert f"hvprof-{__version__}.tar.gz" in spack


@pytest.mark.parametrize("name", LIBRARIES)
def test_programs_of_every_mpi_are_recorded(site: Site, name: str, tmp_path: Path) -> None:
    mpi, run = bin_of(name), tmp_path / "run"
    command = [*mpirun(2, mpi), mpi / "python", "-c", _PROGRAM]
    launchers = link_programs(tmp_path / "mpi", mpi)
    site.hvprof("record", "-o", run, "--", *command, mpi=launchers)
    ranks = hvprof.load(run).ranks
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        counted = totals(rank)
        assert (counted["allreduce"], counted["barrier"]) == ((7, 7 * 24), (1, 0))
    assert "allreduce" in site.hvprof("report", run)
