"""Nodes and ranks: who shares memory with whom, and the private communicators.

Communicators are hvd_ext's own and carry its name, so that its traffic never meets
the program's and a profiler can tell them apart.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvd_ext.errors import HvdExtError
from hvd_ext.job.monitored_barrier import roll_call

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True, eq=False)
class Topology:
    """The job as this rank sees it.

    Attributes:
        world: all ranks.
        node: the ranks that can share memory with this one.
        cross: the ranks with this one's local_rank, one per node. Meaningful only if
            `homogeneous`.
        hosts: host name of every rank.
        homogeneous: every node has the same number of ranks.
    """

    world: MPI.Comm
    node: MPI.Comm
    cross: MPI.Comm
    hosts: tuple[str, ...]
    homogeneous: bool

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.world.size // self.node.size if self.homogeneous else len(set(self.hosts))

    def name(self, rank: int) -> str:
        """How a person finds a rank: "rank 3 (node07)"."""
        return f"rank {rank} ({self.hosts[rank]})"

    def node_world_ranks(self) -> list[int]:
        """World ranks of the node's ranks, by local rank."""
        return _world_ranks(self.world, self.node)


def discover(comm: MPI.Comm, timeout_s: float) -> Topology:
    """Find out nodes and ranks; collective over `comm`.

    Raises:
        StallError: ranks did not come within `timeout_s`; names them.
        HvdExtError: MPI was started without MPI_THREAD_MULTIPLE.
    """
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise HvdExtError(
            "MPI runs without MPI_THREAD_MULTIPLE, which overlapping an exchange with backward "
            "needs: let hvd.init() start MPI, or ask for it in MPI_Init_thread"
        )
    hosts = roll_call(comm, socket.gethostname(), timeout_s, "starting hvd_ext")
    world = _named(comm.Dup(), "world")
    node = _named(world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank), "node")
    cross = _named(world.Split(color=node.rank, key=world.rank), "cross")
    local_sizes = world.allgather(node.size)
    return Topology(world, node, cross, tuple(hosts), len(set(local_sizes)) == 1)


def _named(comm: MPI.Comm, name: str) -> MPI.Comm:
    comm.Set_name(f"hvd_ext.{name}")
    return comm


def _world_ranks(world: MPI.Comm, comm: MPI.Comm) -> list[int]:
    from mpi4py import MPI

    ranks = range(comm.size)
    return list(MPI.Group.Translate_ranks(comm.group, list(ranks), world.group))
