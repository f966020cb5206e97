"""Installs hvprof and hvd-launch for the users of a site. Standard library only.

PREFIX/venv is a separate Python environment. PREFIX/bin has the two commands alone, so a module
that puts it on PATH hides nobody's Python.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from shutil import rmtree

HERE = Path(__file__).resolve().parent
COMMANDS = ("hvprof", "hvd-launch")
# What a module system reads: Lmod and Environment Modules know this language.
MODULEFILE = """#%Module1.0
module-whatis "hvprof {version}: records and explains the communication of MPI programs"
proc ModulesHelp {{}} {{
    puts stderr "hvprof record -o DIR -- mpirun -np 64 ./a.out"
    puts stderr "hvprof report DIR"
}}
conflict hvprof
prepend-path PATH {prefix}/bin
prepend-path CPATH {prefix}/include
"""
ABOUT = """
import hvd_ext, hvprof
print(hvd_ext.__version__, hvprof.get_include(), sep="\\n")
"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Install hvprof and hvd-launch into a folder, for all users of a site.",
        epilog="example: python3 install.py /sw/hvprof/0.1.0 --modulefiles /sw/modulefiles",
    )
    parser.add_argument("prefix", metavar="PREFIX", type=Path, help="folder to install into")
    parser.add_argument(
        "--wheels",
        metavar="DIR",
        type=Path,
        default=HERE / "wheels",
        help="folder of wheels; no package index is asked (default: wheels next to this program)",
    )
    parser.add_argument(
        "--modulefiles",
        metavar="DIR",
        type=Path,
        help="write DIR/hvprof/VERSION, for Lmod or Environment Modules",
    )
    options = parser.parse_args()
    if sys.version_info < (3, 10):  # noqa: UP036
        parser.error(f"Python {sys.version.split()[0]} is too old: use 3.10 or newer")
    if not list(options.wheels.glob("hvd_ext-*.whl")):
        parser.error(f"no hvd_ext-*.whl in {options.wheels}: `make site` collects the wheels")
    install(options.prefix.absolute(), options.wheels, options.modulefiles)


def install(prefix: Path, wheels: Path, modulefiles: Path | None) -> None:
    """Install into `prefix`, replacing what an earlier installation left there."""
    venv = prefix / "venv"
    rmtree(venv, ignore_errors=True)
    offline = ("-m", "pip", "install", "--quiet", "--no-index", "--find-links", wheels)
    run(sys.executable, "-m", "venv", venv)
    run(venv / "bin" / "python", *offline, "hvd-ext")
    version, include = run(venv / "bin" / "python", "-c", ABOUT).split()
    for name in COMMANDS:
        link(prefix / "bin" / name, venv / "bin" / name)
    link(prefix / "include", Path(include))
    print(f"hvprof {version} is installed in {prefix}: {prefix}/bin/hvprof --help")
    if modulefiles:
        file = modulefiles / "hvprof" / version
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(MODULEFILE.format(version=version, prefix=prefix))
        print(f"{file} is written: module load hvprof/{version}")


def link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def run(*command: str | Path) -> str:
    # A site's own modules must not be taken for the environment's packages.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"install.py: error: this failed: {' '.join(map(str, command))}")
    return done.stdout


if __name__ == "__main__":
    main()
