"""A job: its number of ranks, hosts and command. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hvd_ext.errors import UsageError

# Variables that a rank on another host needs with their values on the starting host; the MPI
# libraries add their own.
EXPORTED = (
    r"PATH|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV|GLIBC_TUNABLES"
    r"|(PYTHON|MALLOC_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|HOROVOD_|HVD_EXT_|HVPROF_|TORCH_|PYTORCH_"
    r"|CUDA_|NCCL_|GLOO_|UCX_|FI_).*"
)
# Variables by which a cluster passes its hostfile to a launcher, as Kubernetes' MPI Operator does.
HOSTFILE_VARIABLES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)
# The devices that a rank sees depend on its own host, not on the launching host.
KEPT_BACK = re.compile(r".*VISIBLE_DEVICES")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# A launcher would misread a number that does not fit into an int.
_MOST_RANKS = 9_999_999
_SLOTS = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True)
class Host:
    """A machine and how many ranks it takes."""

    name: str
    slots: int


@dataclass(frozen=True)
class Job:
    """One launch.

    Attributes:
        size: number of ranks.
        hosts: their hosts; empty: this machine, or the scheduler's choice.
        slots: ranks that the hosts take without sharing cores.
        exported: names of the environment variables that every rank gets.
        as_root: whether the launching user is root.
        command: the program of each rank and its arguments.
    """

    size: int
    hosts: tuple[Host, ...]
    slots: int
    exported: tuple[str, ...]
    as_root: bool
    command: tuple[str, ...]

    @property
    def oversubscribed(self) -> bool:
        """Whether there are more ranks than slots."""
        return self.size > self.slots


def check_size(size: int) -> int:
    """Return the number of ranks, if a job can have it.

    Raises:
        UsageError: it cannot.
    """
    if not 1 <= size <= _MOST_RANKS:
        raise UsageError(f"-np {size}: a job has at least 1 rank, and at most {_MOST_RANKS}")
    return size


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Read "node1:4,node2:4"; a host without slots takes one rank.

    Raises:
        UsageError: an entry is not a host name with a positive number of slots.
    """
    hosts = []
    for entry in text.split(","):
        name, colon, slots = entry.partition(":")
        host = _host(name, slots if colon else "1")
        if host is None:
            raise UsageError(
                f"invalid host {entry!r}: write NAME:SLOTS,... such as node1:4,node2:4"
            )
        hosts.append(host)
    return _once(hosts, "-H")


def parse_hostfile(text: str, path: str) -> tuple[Host, ...]:
    """Read a hostfile: a host in a line, with its slots in the form of an MPI library.

    "node1 slots=4" (Open MPI, Horovod), "node1:4" (MPICH, MVAPICH2, Intel MPI) or "node1"; a #
    begins a comment. A host without slots that is in several lines takes one rank for each, as with
    mpirun_rsh.

    Args:
        text: content of the file.
        path: its name, for errors.

    Raises:
        UsageError: a line has another form, or the file names no host.
    """
    hosts: list[Host] = []
    bare: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, colon, slots = words[0].partition(":")
        named = len(words) == 2 and not colon and words[1].startswith("slots=")
        value = words[1].removeprefix("slots=") if named else slots if colon else "1"
        host = _host(name, value) if len(words) == 1 or named else None
        if host is None:
            raise UsageError(
                f"{path}, line {number}: invalid host {line.strip()!r}: write one a line, "
                "such as: node1 slots=4"
            )
        if not (named or colon) and name in bare:
            at = next(i for i, known in enumerate(hosts) if known.name == name)
            hosts[at] = Host(name, hosts[at].slots + 1)
            continue
        if not (named or colon):
            bare.add(name)
        hosts.append(host)
    if not hosts:
        raise UsageError(f"{path} names no host; write one a line, such as: node1 slots=4")
    return _once(hosts, path)


def even_slots(job: Job, launcher: str) -> int:
    """Return the slots of each host, for a launcher that takes one number for all.

    Raises:
        UsageError: the hosts take different numbers of ranks.
    """
    slots = sorted({host.slots for host in job.hosts})
    if len(slots) > 1:
        raise UsageError(
            f"{launcher} takes the same number of ranks on every host, not {slots[0]} and "
            f"{slots[1]}: give equal slots, or another --launcher"
        )
    return slots[0]


def _host(name: str, slots: str) -> Host | None:
    if not _HOST.fullmatch(name) or not _SLOTS.fullmatch(slots) or int(slots) < 1:
        return None
    return Host(name, int(slots))


def _once(hosts: list[Host], where: str) -> tuple[Host, ...]:
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{where} names {twice[0]!r} twice: give each host once, with its slots")
    return tuple(hosts)
