"""Ranks that MPI did not start, as under torchrun: one node's agree over the store of c10d."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

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
    """MPI's ranks, which may be more; None where MPI did not start those of torch.distributed.

    Args:
        size: of torch.distributed.

    Raises:
        UsageError: MPI started only some of them.
    """
    if dist.is_torchelastic_launched() and "mpi4py.MPI" not in sys.modules:
        return None  # MPI would start for each rank alone, where it can
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # mpi4py or its MPI library is not there
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
    store: Any, ranks: tuple[int, ...], rank: int, occasion: str, timeout_s: float
) -> Topology:
    """The topology of ranks that share a node; collective over them.

    Args:
        store: the group's.
        ranks: global, of the group's.
        rank: this one, among all.
        occasion: what the ranks are about to do, as it stands in errors.
        timeout_s: how long they are waited for.

    Raises:
        UsageError: they are on several nodes.
        StallError: ranks did not reach this in time; names them.
    """
    own = ranks.index(rank)
    name = _meet(store, ranks, own, occasion, timeout_s)
    comm = StoreComm(store, name, own, len(ranks), timeout_s)
    mine = (socket.gethostname(), _boot())
    places = monitored_allgather(cast("MPI.Comm", comm), mine, timeout_s, occasion, ranks=ranks)
    nodes = sorted(set(places))
    if len(nodes) > 1:
        raise UsageError(
            f"{occasion}: the ranks are on {len(nodes)} nodes, and MPI did not start them: between "
            "nodes hvd_ext needs MPI, so start the script with mpirun, srun or hvd-launch run"
        )
    alone = StoreComm(store, f"{name}/{own}", 0, 1, timeout_s)
    world, cross = cast("MPI.Comm", comm), cast("MPI.Comm", alone)
    hosts = tuple(host for host, _ in places)
    return Topology(world, world, cross, hosts, homogeneous=True, ranks=ranks)


def _meet(store: Any, ranks: tuple[int, ...], own: int, occasion: str, timeout_s: float) -> str:
    """A name that only these calls of the ranks have; collective.

    The store may still have the keys of an earlier group, or of ranks that torchrun has started
    again. So each rank makes up a word, and writes down the words that it has seen. Once all have
    written the same, each has seen this rank's, and nothing is left of an earlier meeting.

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

    if not until(all_met, timeout_s, most_sleep_s=MOST_SLEEP_S):
        raise StallReport(missing, occasion, timeout_s).error()
    return f"hvd_ext/{hashlib.blake2b('/'.join(written).encode(), digest_size=8).hexdigest()}"


def _boot() -> str:
    """The name of this start of the kernel: machines may have equal host names."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return str(os.uname())
