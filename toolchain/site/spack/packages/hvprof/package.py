"""Spack's package of hvprof, from the archive that `make site` writes."""

from pathlib import Path

from spack.package import Package, depends_on, version, which


class Hvprof(Package):
    """Records and explains the communication of MPI programs, in C, C++, Fortran and Python."""

    # The archive is looked for where `spack install` is started, and in Spack's mirrors.
    url = f"file://{Path.cwd()}/hvprof-0.1.0.tar.gz"
    manual_download = True

    version("0.1.0")

    # The wheels of an archive are those of one Python: `make site PYTHON=python3.11`.
    depends_on("python@3.10:", type=("build", "run"))

    def install(self, spec: object, prefix: str) -> None:
        """Install the wheels into a separate environment."""
        which("python3", required=True)("install.py", prefix)
