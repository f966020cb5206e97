"""Requirements of the machine before an environment is made. Standard library only."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from workshop import Failure

MPI_PROBE = """
#include <mpi.h>
#include <stdio.h>
int main(void) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(version, &length);
    puts(version);
    return 0;
}
"""


def check_machine(venv: Path, need_bytes: int) -> None:
    """Find out what is missing before anything is downloaded.

    Raises:
        Failure: something is, and what to install.
    """
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise Failure(f"{sys.executable} has no {module}: apt install python3-venv")
    for default, variable in (("cc", "CC"), ("c++", "CXX")):
        compiler = os.environ.get(variable, default).split()[0]
        if shutil.which(compiler) is None:
            raise Failure(f"no compiler {compiler}: apt install g++, or set {variable}")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise Failure(f"no {header}: apt install python3-dev")
    for folder, need in (
        (venv.parent, need_bytes),
        (Path(tempfile.gettempdir()), need_bytes // 2),
    ):
        free = shutil.disk_usage(folder).free
        if free < need:
            raise Failure(
                f"{folder} has {free / 1e9:.1f} GB free, {need / 1e9:g} GB are needed:"
                " free some space, or use a checkout and a TMPDIR on another disk"
            )


def system_mpi() -> str:
    """Name, version and place of the MPI that mpicc builds for, fit for a file name.

    Raises:
        Failure: mpicc is not on PATH, or does not build a working program.
    """
    for wrapper in ("mpicc", "mpicxx"):
        if shutil.which(wrapper) is None:
            raise Failure(f"no {wrapper} on PATH: load your MPI's module, or leave MPI=system out")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "probe.c"), Path(folder, "probe")
        source.write_text(MPI_PROBE)
        try:
            subprocess.run(["mpicc", source, "-o", program], check=True, capture_output=True)
            text = subprocess.check_output([program], text=True, stderr=subprocess.STDOUT)
        except (subprocess.CalledProcessError, OSError) as error:
            raise Failure(f"mpicc on PATH does not build a working program: {error}") from error
    name = re.sub(r"[^A-Za-z0-9.]+", "-", text.splitlines()[0].split(",")[0]).strip("-")
    place = hashlib.sha256(f"{shutil.which('mpicc')}{text}".encode()).hexdigest()[:8]
    return f"{name}-{place}"
