"""Ranks that MPI did not start, as under torchrun: one node's agree over the store of c10d."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist

from hvd_ext.c10d.store_comm import StoreComm
from hvd_ext.errors import UsageError
from hvd_ext.job.monitored_allgather import monitored_allgather
from hvd_ext.job.topology import Topology

if TYPE_CHECKING:
    from mpi4py import MPI

# By the ranks of a group: its store, and what was found out over that.
_topologies: dict[tuple[int, ...], tuple[Any, Topology]] = {}
# How often the ranks of a group have met: their stores may be one after another and yet the same.
_meetings: dict[tuple[int, ...], int] = {}


def mpi_world(size: int) -> MPI.Intracomm | None:
    """MPI's ranks; None where MPI did not start the ranks of torch.distributed.

    Args:
        size: of torch.distributed.

    Raises:
        UsageError: MPI started some of them.
    """
    if dist.is_torchelastic_launched() and "mpi4py.MPI" not in sys.modules:
        return None  # MPI would start for each rank alone, where it can
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # mpi4py or its MPI library is not there
        return None
    world = MPI.COMM_WORLD
    if world.size == size:
        return world
    if world.size == 1:
        return None
    raise UsageError(
        f"torch.distributed has {size} ranks, and MPI has {world.size}: start the script with "
        "mpirun, srun or hvd-launch run"
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
    known = _topologies.get(ranks)
    if known is not None and known[0] is store:
        return known[1]
    turn = _meetings[ranks] = _meetings.get(ranks, 0) + 1
    name, own = f"hvd_ext/{turn}", ranks.index(rank)
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
    topology = Topology(world, world, cross, hosts, homogeneous=True, ranks=ranks)
    _topologies[ranks] = (store, topology)
    return topology


def _boot() -> str:
    """The name of this start of the kernel: machines may have equal host names."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return str(os.uname())
