"""Makes the environment in places where installations fail, as a new user would.

Each place ends in a working job of two ranks, or in one line that names the way out.
Takes some minutes, and root for the places that need a new user or a mount.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wheels import cache_folder
from workshop import ROOT

USER = "hvd-ext-newcomer"
# A rank of its own, and two that find each other.
SINGLETON = "from mpi4py import MPI; assert MPI.COMM_WORLD.size == 1; print('one rank')"
JOB = ("-m", "hvd_launch", "run", "-np", "2", "--")
NO_INDEX = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}


class Broken(Exception):
    """A place did not end as it should; the text says how it did."""


class Absent(Exception):
    """This machine does not have the place; the text says why."""


def run(folder: Path, *command: str, user: str | None = None, **variables: str) -> str:
    """The output of a command.

    Raises:
        Broken: it fails.
    """
    done = attempt(folder, *command, user=user, **variables)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-12:])
        raise Broken(f"{' '.join(command)}: exit {done.returncode}\n{tail}")
    return done.stdout


def attempt(
    folder: Path, *command: str, user: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    kept: Mapping[str, str] = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    if user:
        variables = {"HOME": pwd.getpwnam(user).pw_dir, "USER": user, **variables}
    return subprocess.run(
        command,
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1", **variables},
        user=user,
        group=user,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def checkout(folder: Path) -> Path:
    """A copy of this checkout's files, without what was built in it."""
    names = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT
    )
    for name in filter(None, names.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return folder


def train(folder: Path, user: str | None = None, **variables: str) -> None:
    """Make the environment; start one rank without a launcher, and a job of two."""
    run(folder, "make", "env", user=user, **variables)
    python = str(folder / ".venv" / "bin" / "python")
    run(folder, python, "-c", SINGLETON, user=user, **variables)
    run(folder, python, *JOB, python, "examples/digits.py", user=user, **variables)


def blank_in_path(work: Path) -> None:
    """A checkout in a folder with a blank in its name."""
    train(checkout(work / "my projects" / "hvd ext"))


def narrow_umask(work: Path) -> None:
    """Files that nobody else may read (umask 077)."""
    before = os.umask(0o077)
    try:
        train(checkout(work))
    finally:
        os.umask(before)


def foreign_path(work: Path) -> None:
    """PYTHONPATH with another numpy."""
    (work / "python").mkdir()
    (work / "python" / "numpy.py").write_text("raise ImportError('not this numpy')\n")
    folder = checkout(work / "checkout")
    run(folder, "make", "env", PYTHONPATH=str(work / "python"))
    train(folder)


def active_conda(work: Path) -> None:
    """An active environment like conda's, with its Python and its compilers' variables."""
    conda = work / "conda"
    variables = activated(conda)
    folder = checkout(work / "checkout")
    train(folder, **variables)
    made = (folder / ".venv" / "pyvenv.cfg").read_text()
    if f"home = {conda / 'bin'}\n" not in made:
        raise Broken(f"the environment is not from the active Python:\n{made}")
    # Only what conda's activation sets is gone afterwards.
    python = str(folder / ".venv" / "bin" / "python")
    run(folder, python, *JOB, python, "examples/digits.py")


def activated(conda: Path) -> dict[str, str]:
    """Copy this Python to a prefix as conda lays it out; the variables of its activation."""
    programs = conda / "bin"
    programs.mkdir(parents=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy2(Path(sys.executable).resolve(), programs / version)
    for name in ("python", "python3"):
        (programs / name).symlink_to(version)
    unneeded = shutil.ignore_patterns("site-packages", "dist-packages", "test", "__pycache__")
    for name, place in (("stdlib", "lib"), ("include", "include")):
        folder = sysconfig.get_path(name)
        shutil.copytree(folder, conda / place / version, symlinks=True, ignore=unneeded)
    (conda / "conda-meta").mkdir()
    (conda / "conda-meta" / "history").touch()
    variables = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "CONDA_PREFIX": str(conda),
        "CONDA_DEFAULT_ENV": "base",
        "CONDA_SHLVL": "1",
        "CONDA_PYTHON_EXE": str(programs / "python"),
        "CFLAGS": f"-O2 -isystem {conda / 'include'}",
        "LDFLAGS": f"-Wl,-rpath,{conda / 'lib'} -L{conda / 'lib'}",
    }
    for variable, compiler in (("CC", "gcc"), ("CXX", "g++")):
        if found := shutil.which(compiler):
            program = programs / f"x86_64-conda-linux-gnu-{compiler}"
            program.symlink_to(found)
            variables[variable] = str(program)
    return variables


def on_nfs(work: Path) -> None:
    """A checkout on NFS."""
    kind = run(work, "stat", "--file-system", "--format=%T", ".").strip()
    if kind != "nfs":
        raise Absent(f"{kind} is not NFS: name a folder there: make odd-places NFS=FOLDER")
    train(checkout(work))


def unwritable_home(work: Path) -> None:
    """A HOME that cannot be written."""
    folder = checkout(work)
    seed(folder / "build" / "cache")
    train(folder, HOME="/proc/1", XDG_CACHE_HOME="")


def no_network(work: Path) -> None:
    """No network the second time."""
    folder = checkout(work)
    train(folder)
    train(folder, **NO_INDEX)


def two_at_once(work: Path) -> None:
    """Two checkouts at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: train(checkout(work / name)), ("one", "two")))


def replaced_packages(work: Path) -> None:
    """NumPy and mpi4py replaced under a made environment."""
    folder = checkout(work)
    train(folder)
    python = str(folder / ".venv" / "bin" / "python")
    run(folder, python, "-m", "pip", "install", "numpy==2.2.6", "mpi4py==4.1.0")
    seen = attempt(folder, python, "-m", "hvd_launch", "doctor").stdout
    if "replaced since `make env`: mpi4py" not in " ".join(seen.split()):
        raise Broken(f"doctor does not notice what was replaced:\n{seen}")
    mended = run(folder, "make", "env")
    if len(re.findall("as installed here", mended)) != 2:
        raise Broken(f"make env does not say what it installs again:\n{mended}")
    train(folder)


def no_compiler(work: Path) -> None:
    """A machine without a C++ compiler."""
    programs = work / "bin"
    programs.mkdir()
    for folder in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in folder.iterdir() if folder.is_dir() else ():
            place = programs / program.name
            if not re.search(r"c\+\+|g\+\+", program.name) and not place.is_symlink():
                place.symlink_to(program)
    expect_line(checkout(work / "checkout"), "apt install g++", PATH=str(programs))


def read_only_checkout(work: Path) -> None:
    """A checkout that is read-only."""
    folder = checkout(work / "checkout")
    with mounted_read_only(folder):
        expect_line(folder, "use a copy of the checkout in a folder of yours")


def not_root(work: Path) -> None:
    """A new user who is not root."""
    home = work / "home"
    subprocess.run(["useradd", "--no-create-home", "--home-dir", str(home), USER], check=True)
    try:
        home.mkdir()
        folder = checkout(home / "hvd_ext")
        seed(home / ".cache" / "hvd_ext")
        subprocess.run(["chown", "-R", f"{USER}:", str(home)], check=True)
        train(folder, user=USER, XDG_CACHE_HOME="")
    finally:
        subprocess.run(["userdel", USER], check=True)


def seed(cache: Path) -> None:
    """Copy the wheels that were built before, so that a place does not build them again."""
    shutil.copytree(cache_folder() / "wheels", cache / "wheels")


@contextlib.contextmanager
def mounted_read_only(folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def expect_line(folder: Path, words: str, **variables: str) -> None:
    """`make env` fails with one line that has these words, and no traceback."""
    done = attempt(folder, "make", "env", **variables)
    lines = [line for line in done.stdout.splitlines() if line.startswith("make env: error")]
    if done.returncode == 0 or "Traceback" in done.stdout or len(lines) != 1:
        raise Broken(done.stdout)
    if words not in lines[0]:
        raise Broken(f"no advice: {lines[0]}")


PLACES: tuple[Callable[[Path], None], ...] = (
    blank_in_path,
    narrow_umask,
    foreign_path,
    active_conda,
    unwritable_home,
    no_network,
    two_at_once,
    replaced_packages,
    no_compiler,
    on_nfs,
)
ROOTS_PLACES = (read_only_checkout, not_root)


def main() -> None:
    """Try every place; exit with 1 if one did not end as it should."""
    places = {p.__name__: p for p in (*PLACES, *(ROOTS_PLACES if os.getuid() == 0 else ()))}
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: make odd-places")
    parser.add_argument("places", nargs="*", choices=[[], *places], help="(default: all)")
    parser.add_argument(
        "--nfs", type=Path, metavar="FOLDER", help="a folder on NFS (default: none)"
    )
    arguments = parser.parse_args()
    failed = False
    for name in arguments.places or places:
        # A user who is not root has to reach it.
        base = arguments.nfs if name == on_nfs.__name__ and arguments.nfs else Path("/var/tmp")
        with tempfile.TemporaryDirectory(prefix="hvd-ext-", dir=base) as folder:
            Path(folder).chmod(0o755)
            print(f"{name}: {places[name].__doc__} ", end="", flush=True)
            try:
                places[name](Path(folder))
            except Broken as broken:
                failed = True
                print(f"FAILED\n{broken}", flush=True)
            except Absent as absent:
                print(f"SKIPPED ({absent})", flush=True)
            else:
                print("ok", flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
