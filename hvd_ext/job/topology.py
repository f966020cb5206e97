"""Nodes and ranks: which ranks share memory, and the private communicators.

Communicators are hvd_ext's own and carry its name, so that its traffic never meets
the program's and a profiler can distinguish them.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from hvd_ext.errors import HvdExtError
from hvd_ext.job.communicators import Communicators, Lease
from hvd_ext.job.departures import Departures
from hvd_ext.job.ending import listen_until_the_end
from hvd_ext.job.monitored_allgather import monitored_allgather
from hvd_ext.job.stalls import STALL_TIMEOUT, StallMonitor, name_ranks
from hvd_ext.system.process import keep_mpi_from_workers

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")


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
        ranks: the number of each rank in the whole job, which errors print. It differs from the
            number in `world` if `world` is a part of the job.
        departures: the ranks of `world` that have left.
    """

    world: MPI.Comm
    node: MPI.Comm
    cross: MPI.Comm
    hosts: tuple[str, ...]
    homogeneous: bool
    ranks: tuple[int, ...] = ()
    departures: Departures = field(init=False, repr=False)
    _communicators: Communicators = field(init=False, repr=False)
    _kept: dict[Callable[[Topology], Any], Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "departures", Departures(self.world))
        listen_until_the_end()
        object.__setattr__(self, "_communicators", Communicators(self.world))
        object.__setattr__(self, "_kept", {})
        object.__setattr__(self, "ranks", self.ranks or tuple(range(self.world.size)))

    def borrow(self, purpose: str, *parents: MPI.Comm) -> Lease:
        """Borrow private copies of some of this topology's communicators; collective."""
        return self._communicators.borrow(purpose, *parents)

    def keep(self, make: Callable[[Topology], T]) -> T:
        """Return the result of `make`, made once for this topology and closed with it.

        Args:
            make: a class or a function whose result has close().
        """
        if make not in self._kept:
            self._kept[make] = make(self)
        kept: T = self._kept[make]
        return kept

    def end_threads(self) -> None:
        """Close the objects that `keep` made; to be called before MPI ends."""
        for resource in self._kept.values():
            resource.close()
        self._kept.clear()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the threads, then free the communicators; collective, for when MPI continues.

        If a rank does not arrive within `timeout_s`, MPI frees them at its end.
        """
        from mpi4py import MPI

        self.end_threads()
        if MPI.Is_finalized():
            return
        self.departures.close()
        if self._communicators.close(timeout_s):
            for comm in (self.cross, self.node, self.world):
                comm.Free()

    def allgather(
        self, mine: T, within_s: float, occasion: str, setting: str = STALL_TIMEOUT
    ) -> list[T]:
        """Gather a value of every rank, in rank order; collective.

        Raises:
            StallError: ranks did not reach this in time, or have left; names them.
        """
        return monitored_allgather(
            self.world,
            mine,
            within_s,
            occasion,
            hosts=self.hosts_by_rank,
            ranks=self.ranks,
            setting=setting,
            departures=self.departures,
        )

    def monitor(self, limit_s: float, occasion: str, setting: str = STALL_TIMEOUT) -> StallMonitor:
        """Make a waiter for the ranks of this node."""
        return StallMonitor(
            *(self.hosts_by_rank, self.node_ranks(), limit_s, occasion, setting),
            left=lambda: {self.ranks[rank] for rank in self.departures.ranks()},
        )

    @property
    def nodes(self) -> int:
        return self.world.size // self.node.size if self.homogeneous else len(set(self.hosts))

    @property
    def largest_node(self) -> int:
        """Return the ranks of the largest node: the same on every rank, unlike `node.size`."""
        return self.node.size if self.homogeneous else max(Counter(self.hosts).values())

    @property
    def one_node(self) -> bool:
        """Whether all ranks can share memory."""
        return self.world.size == self.node.size

    def name(self, rank: int) -> str:
        """Name a rank and its host: "rank 3 (node07)"."""
        return name_ranks([rank], self.hosts)

    @property
    def hosts_by_rank(self) -> dict[int, str]:
        """Return host names by the numbers of `ranks`."""
        return dict(zip(self.ranks, self.hosts, strict=True))

    def node_ranks(self) -> list[int]:
        """Return the numbers of the node's ranks in `ranks`, by local rank."""
        if self.one_node:
            return list(self.ranks)
        from mpi4py import MPI

        local, group = list(range(self.node.size)), self.node.group
        ranks = MPI.Group.Translate_ranks(group, local, self.world.group)
        return [self.ranks[rank] for rank in ranks]


def discover(comm: MPI.Comm, timeout_s: float, ranks: tuple[int, ...] = ()) -> Topology:
    """Find the nodes and ranks; collective over `comm`.

    Args:
        comm: all ranks.
        timeout_s: how long to wait for them.
        ranks: their numbers in the job; those of `comm` by default.

    Raises:
        StallError: ranks did not arrive within `timeout_s`; names them.
        HvdExtError: MPI was started without MPI_THREAD_MULTIPLE.
    """
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise HvdExtError(
            "MPI runs without MPI_THREAD_MULTIPLE, which overlapping an exchange with backward "
            "needs: let hvd.init() start MPI, or ask for it in MPI_Init_thread"
        )
    keep_mpi_from_workers()
    hosts = monitored_allgather(
        comm, socket.gethostname(), timeout_s, "starting hvd_ext", ranks=ranks
    )
    world = _named(comm.Dup(), "world")
    node = _named(world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank), "node")
    cross = _named(world.Split(color=node.rank, key=world.rank), "cross")
    local_sizes = world.allgather(node.size)
    return Topology(world, node, cross, tuple(hosts), len(set(local_sizes)) == 1, ranks)


def _named(comm: MPI.Comm, name: str) -> MPI.Comm:
    comm.Set_name(f"hvd_ext.{name}")
    return comm
