"""Cores, GPUs and hosts of this machine, and a job's command on it."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hvd_ext.errors import HvdExtError, UsageError
from hvd_launch.backends import slurm
from hvd_launch.backends.detect import output_of
from hvd_launch.backends.libraries import (
    LIBRARIES,
    Backend,
    Launch,
    build_launch,
    exported_names,
)
from hvd_launch.job import Host, Job
from hvd_launch.settings import Setting

_LOOPBACK = "127.0.0.1"
# Ports below those that Linux assigns to programs that name none.
_PORTS = range(20000, 32000)


def rank_command(
    backend: Backend,
    size: int,
    command: Sequence[str],
    hosts: tuple[Host, ...] = (),
    settings: Iterable[Setting] = (),
    environ: Mapping[str, str] | None = None,
) -> Launch:
    """Return the command that runs `command` on `size` ranks.

    Args:
        backend: result of `find_backend`.
        size: number of ranks.
        command: each rank's program and its arguments.
        hosts: the hosts; empty: this machine, or those of the Slurm allocation.
        settings: variables that override `environ` in every rank.
        environ: the environment to start from (default: this process's).

    Raises:
        UsageError: the launcher cannot start such a job.
    """
    settings = tuple(settings)
    base = dict(os.environ if environ is None else environ)
    base.update({setting.name: setting.value for setting in settings})
    if backend.launcher == "mpirun_rsh":
        hosts = _hosts_by_name(hosts, base)
    job = Job(
        size=size,
        hosts=hosts,
        slots=sum(host.slots for host in hosts) or machine_slots(base),
        exported=tuple(sorted({*exported_names(base), *(s.name for s in settings)})),
        as_root=os.geteuid() == 0,
        command=tuple(command),
    )
    return build_launch(backend, job, base)


def _hosts_by_name(hosts: tuple[Host, ...], environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return this machine for mpirun_rsh, which needs no ssh only for this machine's name."""
    if not hosts and slurm.allocated(environ):
        return allocated_hosts(environ)
    here = socket.gethostname()
    hosts = hosts or (Host(here, machine_slots(environ)),)
    return tuple(Host(here, h.slots) if h.name == "localhost" else h for h in hosts)


def module(name: str) -> tuple[str, ...]:
    """Return the command that runs a module of the project, in any working folder.

    `python -m` would import a select.py there in place of Python's own.
    """
    return (sys.executable, str(Path(__file__).with_name("run_module.py")), name)


def meeting_place(
    hosts: Sequence[Host], environ: Mapping[str, str], job: Sequence[str]
) -> tuple[str, str]:
    """Return the host of rank 0, and a port for torch.distributed (MASTER_ADDR, MASTER_PORT).

    They are the same for the same job, as long as the port is free here, so --dry-run shows what
    run does.

    Args:
        hosts: hosts of the job; empty: this machine, or the Slurm allocation.
        environ: may contain the allocation.
        job: text that distinguishes it from other jobs.
    """
    # A machine need not know its own name.
    host = _LOOPBACK
    if len(hosts) > 1:
        host = hosts[0].name
    elif not hosts and slurm.allocated(environ) and environ.get("SLURM_JOB_NUM_NODES") != "1":
        host = slurm.first_host(environ) or _LOOPBACK
    digest = hashlib.sha256("\0".join(job).encode(errors="surrogateescape")).digest()
    first = int.from_bytes(digest[:4], "big") % len(_PORTS)
    ports = (*_PORTS[first:], *_PORTS[:first])
    port = next((port for port in ports if _is_free(port)), ports[0])
    return host, str(port)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def machine_slots(environ: Mapping[str, str]) -> int:
    """Return the ranks that fit without sharing cores: in the allocation, else on this machine."""
    allocated = slurm.slots(environ) if slurm.allocated(environ) else None
    return sum(allocated) if allocated else cores()


def allocated_hosts(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the hosts of the Slurm allocation, by scontrol.

    Raises:
        HvdExtError: scontrol does not list the hosts.
    """
    text = output_of(["scontrol", "show", "hostnames", environ.get("SLURM_JOB_NODELIST", "")])
    names = text.split()
    counts = slurm.slots(environ) or (1,) * len(names)
    if not names or len(counts) != len(names):
        raise HvdExtError(
            "Slurm does not list the hosts of this allocation (scontrol show hostnames): "
            "name them with -H"
        )
    return tuple(Host(*pair) for pair in zip(names, counts, strict=True))


def check_hosts(hosts: Iterable[Host], environ: Mapping[str, str]) -> None:
    """Raise a UsageError for a host whose name cannot be resolved."""
    agents = {library.agent_variable for library in LIBRARIES.values()}
    if agents & environ.keys() or slurm.allocated(environ):
        return
    for host in hosts:
        if not (_resolves(host.name) or _resolves(_ssh_name(host.name))):
            raise UsageError(
                f"cannot resolve host {host.name!r}: neither the name service nor ssh's "
                "configuration knows it; check its spelling"
            )


def cores() -> int:
    """Return the cores that this process may use, which Open MPI counts as a machine's slots."""
    return len({_siblings(cpu) for cpu in os.sched_getaffinity(0)})


def gpus(proc: Path = Path("/proc/driver/nvidia/gpus"), dev: Path = Path("/dev")) -> int:
    """Return the NVIDIA GPUs of this machine, as the driver lists them."""
    listed = len(list(proc.iterdir())) if proc.is_dir() else 0
    return listed or len([path for path in dev.glob("nvidia*") if path.name[6:].isdecimal()])


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True


def _ssh_name(name: str) -> str:
    """Return the name that ssh's configuration replaces this one by."""
    lines = output_of(["ssh", "-G", name], missing="").splitlines()
    return next((line.split()[1] for line in lines if line.startswith("hostname ")), name)


def _siblings(cpu: int) -> str:
    """Return the hardware threads of a CPU's core; only the CPU if they are unknown."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(cpu)
