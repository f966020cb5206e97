"""Ranks that MPI did not start, as under torchrun: those of one node agree over c10d's store."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from hvd_ext.c10d.store_comm import MOST_SLEEP_S, StoreComm
from hvd_ext.errors import UsageError
from hvd_ext.job.monitored_allgather import monitored_allgather
from hvd_ext.job.stalls import StallReport
from hvd_ext.job.topology import Topology
from hvd_ext.job.waiting import until
from hvd_ext.units import counted

if TYPE_CHECKING:
    from mpi4py import MPI


def mpi_world(size: int) -> MPI.Intracomm | None:
    """Return MPI's ranks, which may be more than torch's; None if MPI did not start torch's.

    Args:
        size: number of ranks of torch.distributed.

    Raises:
        UsageError: MPI started only some of torch's ranks.
    """
    if dist.is_torchelastic_launched() and "mpi4py.MPI" not in sys.modules:
        return None  # MPI, if it could start at all, would start for each rank alone
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # mpi4py or its MPI library is missing
        return None
    world = MPI.COMM_WORLD
    if world.size >= size:
        return world
    if world.size == 1:
        return None
    raise UsageError(
        f"torch.distributed has {counted(size, 'rank')}, and MPI has {world.size}: start the "
        "script with mpirun, srun or hvd-launch run"
    )


def by_mpi(topology: Topology) -> bool:
    """Whether MPI started these ranks."""
    return not isinstance(topology.world, StoreComm)


def discover(
    store: Any, ranks: tuple[int, ...], rank: int, occasion: str, limit: tuple[float, str]
) -> Topology:
    """Make the topology of ranks that share a node; collective over them.

    Args:
        store: the group's store.
        ranks: global numbers of the group's ranks.
        rank: global number of this rank.
        occasion: what the ranks are about to do, for errors.
        limit: how long to wait for them, and the setting of that time.

    Raises:
        UsageError: they are on several nodes.
        StallError: ranks did not reach this in time; names them.
    """
    own = ranks.index(rank)
    name = _meet(store, ranks, own, occasion, limit)
    comm: Any = StoreComm(store, name, own, len(ranks), limit[0])
    mine = (socket.gethostname(), _boot())
    places = monitored_allgather(comm, mine, limit[0], occasion, ranks=ranks, setting=limit[1])
    nodes = sorted(set(places))
    if len(nodes) > 1:
        raise UsageError(
            f"{occasion}: the ranks are on {len(nodes)} nodes, and MPI did not start them: between "
            "nodes hvd_ext needs MPI, so start the script with mpirun, srun or hvd-launch run"
        )
    alone: Any = StoreComm(store, f"{name}/{own}", 0, 1, limit[0])
    hosts = tuple(host for host, _ in places)
    return Topology(comm, comm, alone, hosts, homogeneous=True, ranks=ranks)


def _meet(
    store: Any, ranks: tuple[int, ...], own: int, occasion: str, limit: tuple[float, str]
) -> str:
    """Agree on a name that only this call has; collective.

    The store may still have the keys of an earlier group, or of ranks that torchrun has restarted.
    So each rank makes a random word, and writes the words of all ranks that it has seen. Once all
    ranks have written the same words, each has seen this rank's, and no key of an earlier group is
    used.

    Raises:
        StallError: ranks did not reach this in time; names them.
    """
    keys = [f"hvd_ext/meeting/{index}" for index in range(len(ranks))]
    word = secrets.token_hex(8)
    written: list[str] = []
    missing: list[int] = []

    def all_met() -> bool:
        nonlocal written
        read = [store.get(key).decode().split("/") if store.check([key]) else [] for key in keys]
        words = [said[index] if len(said) == len(ranks) else "" for index, said in enumerate(read)]
        words[own] = word
        if words != written:
            written = words
            store.set(keys[own], "/".join(words))
        missing[:] = [rank for rank, said in zip(ranks, read, strict=True) if word not in said]
        return all(said == written for said in read)

    if not until(all_met, limit[0], most_sleep_s=MOST_SLEEP_S):
        raise StallReport(missing, occasion, limit[0], setting=limit[1]).error()
    return f"hvd_ext/{hashlib.blake2b('/'.join(written).encode(), digest_size=8).hexdigest()}"


def _boot() -> str:
    """Return the id of this boot of the kernel, because machines may have equal host names."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return str(os.uname())
