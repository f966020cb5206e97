"""hvprof's recorder, built for an MPI library other than this environment's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "profiling" / "hvprof" / "recorder" / "pmpi.c"


def compile_for(mpi: Path, *arguments: str | Path) -> None:
    """Run an MPI library's compiler.

    Args:
        mpi: the folder of its mpicc.
        arguments: of mpicc.

    Raises:
        subprocess.CalledProcessError: it does not compile.
    """
    # Intel's wrapper asks for its place.
    variables = {**os.environ, "I_MPI_ROOT": str(mpi.parent)}
    subprocess.run([mpi / "mpicc", *arguments], env=variables, check=True)


def build_recorder(mpi: Path, library: Path, *options: str) -> Path:
    """Build the recorder for the MPI library of a folder with mpicc.

    Args:
        mpi: the folder.
        library: the file to make.
        options: further ones of mpicc, which come first.
    """
    shared = ("-shared", "-fPIC", "-O1", "-pthread")
    compile_for(mpi, *options, *shared, SOURCE, "-o", library)
    return library


def recording_with(library: Path) -> list[str]:
    """The words before a launcher in `hvprof record -- ...` that have it preload a library."""
    return ["env", f"LD_PRELOAD={library}"]
