"""The two levels of the collectives: a node's memory, and messages between nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.agreed import read_table
from hvd_ext.allreduce.algorithms.segments import MOST_BYTES, TAG, wait
from hvd_ext.engine.nodes import Nodes
from hvd_ext.job.progress_thread import ProgressThread
from hvd_ext.job.stalls import StallMonitor
from hvd_ext.job.watchdog import NO_LIMIT_S
from hvd_ext.shm.regions import WindowError, on_every_rank
from hvd_ext.shm.window import NodeExchange, NodeWindow
from hvd_ext.units import KIB, MIB

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology

# The bytes that a node's ranks put into memory at once: still in the caches when peers read them.
PIECE_BYTES = MIB
# Messages of at least this length are divided among a node's ranks. Below it, latency counts, and
# the MPI library's own collectives are used.
RAILS_BYTES = 64 * KIB
# Messages of up to this length arrive before a sleep would end.
_SOON_BYTES = 256 * KIB


class Levels:
    """The ranks of one group, its memory within each node, and its communicators between nodes.

    Attributes:
        rank, size: number in the group, and number of ranks.
        nodes: the ranks of each node.
        local_rank: number among the ranks of this node.
        comm: all ranks, for messages.
        rail: the ranks with this local rank, one of each node that has that many ranks.
        memories: memory of the node's ranks by local rank, uint8: two places of PIECE_BYTES.
        relayed: by local rank, the ranks whose messages each of them passes on.
        table: names the algorithm of an allreduce between nodes.
    """

    def __init__(self, topology: Topology) -> None:
        """Make the memory and the communicators; collective over the group.

        Each rank that cannot share memory counts as a node.

        Raises:
            WindowError: on every rank, if one of them cannot even get memory for itself.
        """
        world = topology.world
        self.rank, self.size = world.rank, world.size
        node, cross, self.window = _shared(topology)
        self.nodes = Nodes.of(world.allgather(min(node.allgather(world.rank))))
        self.local_rank = node.rank
        self.ranks_of_node = self.nodes.ranks[self.nodes.of_rank[self.rank]]
        self.memories = [np.frombuffer(self.window.peer(r), np.uint8) for r in range(node.size)]
        self.table = read_table(world)
        self.relayed = [self.nodes.relayed_by(rank) for rank in self.ranks_of_node]
        self._lease = topology.borrow("collectives", world, cross, world)
        self.comm, self.rail, self.watched = self._lease.comms
        self.uses = self._lease.uses
        self._monitored = StallMonitor(
            hosts=topology.hosts_by_rank,
            ranks=[topology.ranks[rank] for rank in self.ranks_of_node],
            limit_s=NO_LIMIT_S,
            occasion="a collective",
        )
        self._ticket = 0
        self._thread: ProgressThread | None = None

    @property
    def thread(self) -> ProgressThread:
        """Moves a piece between the nodes while the next one is reduced within."""
        if self._thread is None:
            self._thread = ProgressThread()
        return self._thread

    @property
    def node(self) -> int:
        """The number of this rank's node."""
        return self.nodes.of_rank[self.rank]

    @property
    def own(self) -> Array:
        """This rank's memory."""
        return self.memories[self.local_rank]

    def next(self) -> tuple[int, int]:
        """Return the next ticket, and the offset of its place in every rank's memory.

        Places alternate: a rank that is ready with a ticket has read the other place.
        """
        self._ticket += 1
        return self._ticket, (self._ticket & 1) * PIECE_BYTES

    def meet(self, ticket: int) -> None:
        """Report that this rank is ready with a ticket, and wait until the node's ranks are."""
        self._monitored(lambda limit_s: self.window.meet(ticket, limit_s))

    def reduce(self, exchange: NodeExchange, ticket: int) -> None:
        """Reduce this rank's part of an exchange, once the node's ranks are ready."""
        self._monitored(lambda limit_s: self.window.reduce(exchange, ticket, limit_s))

    def finish(self, ticket: int) -> None:
        """Wait until the node's ranks are done with a ticket."""
        self._monitored(lambda limit_s: self.window.finish(ticket, limit_s))

    def close(self, finished: bool) -> None:
        """Return the communicators, if all calls have ended."""
        if self._thread is not None:
            self._thread.close()
        if finished:
            self.memories.clear()
            del self.window
            self._lease.give_back()


def _shared(topology: Topology) -> tuple[MPI.Comm, MPI.Comm, NodeWindow]:
    """Find the ranks that share memory, those with this local rank, and the memory; collective."""
    from mpi4py import MPI

    if not topology.one_node:
        with suppress(WindowError):  # on every rank alike
            window = on_every_rank(topology, lambda: NodeWindow(topology.node, 2 * PIECE_BYTES))
            return topology.node, topology.cross, window
    alone = MPI.COMM_SELF
    return (
        alone,
        topology.world,
        on_every_rank(topology, lambda: NodeWindow(alone, 2 * PIECE_BYTES)),
    )


class Transfers:
    """Messages in flight; those between two ranks arrive in the order in which they began.

    Attributes:
        bytes: of all that was begun since the last wait.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self._requests: list[MPI.Request] = []
        self.bytes = 0

    def send(self, part: Array, to: int) -> None:
        """Begin to send a block that must not change until `wait`; nothing if it is empty."""
        self._requests += [self._comm.Isend(piece, to, TAG) for piece in _pieces(part)]
        self.bytes += part.nbytes

    def receive(self, part: Array, source: int) -> None:
        """Begin to receive as many bytes as were sent."""
        self._requests += [self._comm.Irecv(piece, source, TAG) for piece in _pieces(part)]
        self.bytes += part.nbytes

    def wait(self) -> None:
        """Wait for all messages that have begun; sleep if that takes long."""
        requests, self._requests = self._requests, []
        if self.bytes <= _SOON_BYTES:
            for request in requests:
                request.Wait()
        else:
            for request in requests:
                wait(request)
        self.bytes = 0


def _pieces(part: Array) -> Iterator[Array]:
    """MPI counts with an int, and libraries compute bytes with one; it has no 16-bit floats."""
    memory = part.view(np.uint8)
    for begin in range(0, len(memory), MOST_BYTES):
        yield memory[begin : begin + MOST_BYTES]
