"""The peers of benchmarks.peers, and the settings of each: add a line for a better one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import BenchmarkError
from testbed.ranks import ROOT

HERE = Path(__file__).parent
ONECCL = ROOT / "build" / "peers" / "oneccl"
# PyPI's; its MPI is Intel MPI's.
_ONECCL_PACKAGES = ("oneccl-cpu==2022.2.0", "oneccl-cpu-devel==2022.2.0", "intel-cmplr-lib-rt")


@dataclass(frozen=True)
class Library:
    """A peer's library.

    Attributes:
        python: of the environment whose MPI starts its ranks.
        source: the program that times it.
        made_by: what makes the environment.
        building: variables for its compiler.
        running: variables by which its ranks find their libraries on this machine.
    """

    python: Path
    source: str = "mpi.c"
    made_by: str = "make mpis"
    building: Mapping[str, str] = field(default_factory=dict)
    running: Mapping[str, str] = field(default_factory=dict)


def _beside(name: str) -> Path:
    return ROOT / ".venvs" / name / "bin" / "python"


_INTEL = {"I_MPI_ROOT": str(_beside("intelmpi").parents[1])}
# oneCCL opens Intel MPI's library by its name.
_INTEL_FOUND = {"LD_LIBRARY_PATH": str(_beside("intelmpi").parents[1] / "lib")}
LIBRARIES = {
    "openmpi4": Library(Path(sys.executable).absolute(), made_by="make env"),
    "openmpi5": Library(_beside("openmpi5")),
    "mpich5": Library(_beside("mpich5")),
    "intelmpi": Library(_beside("intelmpi"), building=_INTEL),
    "oneccl": Library(_beside("intelmpi"), "oneccl.cpp", building=_INTEL, running=_INTEL_FOUND),
    # Its ranks are those of an MPI that brings no UCX, which would take the place of UCC's own.
    "ucc": Library(_beside("intelmpi"), "ucc.c", building=_INTEL),
}


@dataclass(frozen=True)
class Contender:
    """A library with settings.

    Attributes:
        library: a key of LIBRARIES.
        variables: of its ranks.
    """

    library: str
    variables: Mapping[str, str] = field(default_factory=dict)


def _tuned(algorithm: int, **more: str) -> dict[str, str]:
    return {
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": str(algorithm),
        "OMPI_MCA_coll_han_priority": "0",
        **more,
    }


def _intel(algorithm: int) -> dict[str, str]:
    return {"I_MPI_FABRICS": "shm", "I_MPI_ADJUST_ALLREDUCE": str(algorithm)}


def _ucc(layers: str, allreduce: str = "") -> dict[str, str]:
    """Collective layers of UCC, and the algorithm of its layer over UCX, which stays in memory."""
    tuned = {"UCC_TL_UCP_TUNE": f"allreduce:@{allreduce}"} if allreduce else {}
    return {"UCC_CLS": layers, "UCX_TLS": "shm,self", **tuned}


def _ccl(algorithm: str) -> dict[str, str]:
    # It starts no workers where a rank has one core.
    return {"CCL_ATL_TRANSPORT": "mpi", "I_MPI_PIN": "1", "CCL_ALLREDUCE": algorithm}


_RELEASE_GATHER = {
    "MPIR_CVAR_ALLREDUCE_COMPOSITION": "2",
    **{
        f"MPIR_CVAR_{collective}_POSIX_INTRA_ALGORITHM": "release_gather"
        for collective in ("ALLREDUCE", "BCAST", "REDUCE")
    },
    "MPIR_CVAR_REDUCE_INTRANODE_BUFFER_TOTAL_SIZE": "1048576",
    "MPIR_CVAR_BCAST_INTRANODE_BUFFER_TOTAL_SIZE": "1048576",
    "MPIR_CVAR_COLL_SHM_LIMIT_PER_NODE": "1048576",
}
# From a search on 2 ranks over the algorithms of these libraries (some in an earlier release), with
# single copies (CMA) on and off. Most were the fastest of the peers at some size on 2 or 4 ranks;
# MPICH's release_gather and oneCCL's direct were not, and stay as those libraries' own ways.
CONTENDERS = {
    "openmpi4": Contender("openmpi4"),
    "openmpi5": Contender("openmpi5"),
    "openmpi5_ring_two_copies": Contender("openmpi5", _tuned(4, OMPI_MCA_smsc="^cma")),
    "openmpi5_rabenseifner": Contender("openmpi5", _tuned(6)),
    "mpich5_composition3": Contender("mpich5", {"MPIR_CVAR_ALLREDUCE_COMPOSITION": "3"}),
    "mpich5_release_gather": Contender("mpich5", _RELEASE_GATHER),
    "mpich5_rabenseifner": Contender(
        "mpich5",
        {
            "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "reduce_scatter_allgather",
            "MPIR_CVAR_ALLREDUCE_COMPOSITION": "3",
            "MPIR_CVAR_DEVICE_COLLECTIVES": "none",
        },
    ),
    "intelmpi_shm": Contender("intelmpi", {"I_MPI_FABRICS": "shm"}),
    # By Intel MPI's numbers.
    "intelmpi_shm_10": Contender("intelmpi", _intel(10)),
    "intelmpi_shm_13": Contender("intelmpi", _intel(13)),
    "oneccl": Contender("oneccl", _ccl("direct")),
    "oneccl_nreduce": Contender("oneccl", _ccl("nreduce")),
    "ucc": Contender("ucc", _ucc("basic")),
    "ucc_hier": Contender("ucc", _ucc("hier,basic")),
    "ucc_sra_knomial": Contender("ucc", _ucc("basic", "sra_knomial")),
}


def install(name: str) -> None:
    """Install a library from the package index, if it is absent.

    Raises:
        BenchmarkError: it cannot be had.
    """
    library = LIBRARIES[name]
    if not library.python.exists():
        make_env = [sys.executable, str(ROOT / "toolchain" / "make_env.py")]
        run([*make_env, "--beside", library.python.parents[1].name], name)
    if name == "oneccl" and not ONECCL.exists():
        into = ["--no-deps", "--ignore-installed", "--prefix", str(ONECCL)]
        run([sys.executable, "-m", "pip", "install", "-q", *into, *_ONECCL_PACKAGES], name)


def absent(name: str, ucc: Path | None) -> str | None:
    """The reason that a library cannot be measured; None if it can.

    Args:
        name: of the library.
        ucc: where UCC is installed, if it is.
    """
    library = LIBRARIES[name]
    if not library.python.exists():
        return f"no {library.python.parents[1]}: run `{library.made_by}`"
    if name == "oneccl" and not ONECCL.exists():
        return f"no {ONECCL}: use --install (needs libhwloc-dev)"
    if name == "ucc" and not (ucc and has_ucc(ucc)):
        return "build it with UCX, and give its folder with --ucc"
    return None


def compiled(name: str, folder: Path, ucc: Path | None) -> Path:
    """The program that times a library, compiled into a folder; `ucc` as of `absent`.

    Raises:
        BenchmarkError: it does not compile.
    """
    library, program = LIBRARIES[name], folder / name
    compiler = library.python.with_name("mpicc")
    options = ["-O2", str(HERE / library.source), "-o", str(program)]
    if name == "oneccl":
        compiler = library.python.with_name("mpicxx")
        place = ONECCL / "lib"
        # Its shared library needs one that no package has; the archive needs hwloc of the system.
        options += [f"-I{ONECCL / 'include'}", str(place / "ccl" / "cpu" / "lib" / "libccl.a")]
        options += [f"-L{place}", f"-Wl,-rpath,{place}"]
        options += [f"-l{name}" for name in ("irc", "intlc", "svml", "imf", "irng", "hwloc", "dl")]
    if name == "ucc":
        assert ucc is not None
        options += with_ucc(ucc)
    run([str(compiler), *options], name, library.building)
    return program


def has_ucc(prefix: Path) -> bool:
    """Whether UCC is installed in a folder."""
    return (prefix / "include" / "ucc" / "api" / "ucc.h").exists()


def with_ucc(prefix: Path) -> list[str]:
    """Options of a compiler for a program that calls UCC."""
    place = prefix / "lib"
    return [f"-I{prefix / 'include'}", f"-L{place}", f"-Wl,-rpath,{place}", "-lucc"]


def run(command: list[str], name: str, variables: Mapping[str, str] | None = None) -> None:
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no reason given"]
        raise BenchmarkError(f"{name}: {Path(command[0]).name} failed: {lines[-1]}")
