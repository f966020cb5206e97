"""Programs in C for an MPI library other than this environment's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


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
