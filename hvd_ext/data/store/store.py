"""Samples in the ranks' memory: one rank reads each once, and sends it to the ranks that need it.

Within a node, ranks read samples in place, once a flag behind a sample says that it is there. Each
rank computes in `owners`, some steps ahead, which rank keeps and sends each sample.
"""

from __future__ import annotations

import logging
import socket
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hvd_ext.data.agreed import agreed, require_threads
from hvd_ext.data.order import Order
from hvd_ext.data.store.budget import rank_budget
from hvd_ext.data.store.exchange import TAGS, RecordExchange, said, why
from hvd_ext.data.store.owners import NO_OWNER, Owners
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.shm.flags import is_raised, raise_flag
from hvd_ext.shm.library import load_library
from hvd_ext.shm.regions import WindowError, map_regions
from hvd_ext.units import format_bytes

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger("hvd_ext")

Bytes = NDArray[np.uint8]
_HEADER_BYTES = 4096  # map_regions writes into it


class Records(Protocol):
    """Samples that a store can keep: bytes of a length that is known before they are read.

    Attributes:
        lengths: bytes of each sample.
    """

    @property
    def lengths(self) -> NDArray[np.int64]: ...

    def record(self, sample: int) -> Bytes:
        """Return the bytes of a sample in the file; several threads call it at once.

        Args:
            sample: number of the sample.
        """

    def decode(self, sample: int, record: Bytes) -> Any:
        """Return the sample in a record.

        Args:
            sample: number of the sample.
            record: its bytes, which are shared and read-only.
        """


@dataclass(frozen=True)
class StoreSize:
    """The memory that a store needs.

    Attributes:
        samples_bytes: bytes of all samples.
        kept_bytes: bytes of the samples that all nodes together keep.
        node_bytes: maximum that a node keeps.
        ahead_bytes: maximum that this rank has received and not returned yet.
    """

    samples_bytes: int
    kept_bytes: int
    node_bytes: int
    ahead_bytes: int

    def __str__(self) -> str:
        kept = min(1.0, self.kept_bytes / max(1, self.samples_bytes))
        rest = "" if kept == 1 else f"; {1 - kept:.0%} are read again whenever they are needed"
        return (
            f"{kept:.0%} of {format_bytes(self.samples_bytes)} of samples are kept in memory, at "
            f"most {format_bytes(self.node_bytes)} on a node{rest}"
        )


class MemoryStore:
    """The samples of a run, each in the memory of one node.

    Attributes:
        size: the memory that it needs.
    """

    def __init__(
        self,
        records: Records,
        order: Order,
        first: int,
        local_batch: int,
        ahead: int,
        comm: MPI.Comm,
        budget: int | None,
    ) -> None:
        """Reserve the memory; nothing is read yet. A collective.

        Args:
            records: the samples; the same for all ranks of `comm`.
            order: order of the samples.
            first: position at which the run begins.
            local_batch: samples of a rank in a step.
            ahead: steps that begin before they are requested.
            comm: the ranks that share a step.
            budget: bytes that this rank may keep; None: its part of the node's free memory.

        Raises:
            HvdExtError: on every rank, if there is not enough memory.
        """
        require_threads(comm, "a store")
        self._records, self._first, self._batch = records, first, local_batch
        self._rank = comm.rank
        node = sharing_memory(comm)
        if budget is None:
            budget = rank_budget(node.size)
        leader = node.bcast(comm.rank)
        known = comm.allgather((budget, leader))
        budgets, leaders = (np.array(column) for column in zip(*known, strict=True))
        lengths = np.asarray(records.lengths, np.int64)
        self._owners = Owners(order, first, local_batch, lengths, budgets)
        self._lengths = lengths
        self._local = leaders == leader
        self.size = self._measure(leaders, local_batch * (ahead + 1))
        regions = _map(comm, node, int(self._owners.rank_bytes[comm.rank]))
        self._regions = dict(zip(np.flatnonzero(self._local).tolist(), regions, strict=True))
        self._addresses = {owner: region.ctypes.data for owner, region in self._regions.items()}
        node.Free()
        # The samples that this rank keeps and that are not there yet.
        self._coming: dict[int, Future[Bytes]] = {}
        self._exchange = RecordExchange(comm) if comm.size > 1 else None

    @property
    def bytes_sent(self) -> int:
        """Return the bytes sent to other nodes so far."""
        return self._exchange.bytes_sent if self._exchange else 0

    @property
    def bytes_received(self) -> int:
        """Return the bytes received from other nodes so far."""
        return self._exchange.bytes_received if self._exchange else 0

    def start(self, first: int, pool: Executor) -> list[Future[Bytes]]:
        """Begin to read, send and receive the records of a step, on all ranks.

        Args:
            first: position of the step.
            pool: threads that read.

        Returns:
            The record of each of this rank's samples.
        """
        step, rank = self._owners.step(first), self._rank
        # The number of the record among those of its user identifies the message.
        before = (first - self._first) // self._owners.ranks
        mine: list[Future[Bytes]] = []
        for entry in np.flatnonzero(step.users == rank):
            sample, owner = int(step.samples[entry]), int(step.owners[entry])
            if step.read[entry]:
                mine.append(pool.submit(self._read, sample, owner))
                if owner == rank:
                    self._coming[sample] = mine[-1]
                    mine[-1].add_done_callback(partial(self._arrived, sample))
            elif owner == rank:
                mine.append(self._own(sample))
            elif self._local[owner]:
                mine.append(self._peers(sample, owner))
            else:
                place = np.empty(int(self._lengths[sample]), np.uint8)
                tag = (before + entry % self._batch) % TAGS
                assert self._exchange
                mine.append(self._exchange.receive(place, owner, tag))
        for entry in step.sent(rank):
            user, tag = int(step.users[entry]), (before + entry % self._batch) % TAGS
            if not self._local[user]:
                assert self._exchange
                sample = int(step.samples[entry])
                self._exchange.send(self._own(sample), int(self._lengths[sample]), user, tag)
        return mine

    def close(self) -> None:
        """Wait for unfinished records, and forget all. A collective."""
        if self._exchange:
            self._exchange.close()
        self._regions.clear()

    def _read(self, sample: int, owner: int) -> Bytes:
        if owner == NO_OWNER:
            record = self._records.record(sample)
        else:
            record = self._place(sample, owner)
            try:
                record[:] = self._records.record(sample)
            except HvdExtError as error:
                text = why(error, record.size)
                record[:] = 0
                record[: text.size] = text
                self._failed(sample, owner)[:] = 1
                raise_flag(self._flag(sample, owner))
                raise
            raise_flag(self._flag(sample, owner))
        record.flags.writeable = False
        return record

    def _own(self, sample: int) -> Future[Bytes]:
        """Return a sample that this rank keeps or is going to keep."""
        return self._coming.get(sample) or _done(self._place(sample, self._rank))

    def _peers(self, sample: int, owner: int) -> Future[Bytes]:
        """Return a sample that another rank of this node keeps or is going to keep."""
        record, flag = self._place(sample, owner), self._flag(sample, owner)
        record.flags.writeable = False

        def found() -> Bytes | None:
            if not is_raised(flag):
                return None
            if self._failed(sample, owner).any():
                raise UsageError(said(record))
            return record

        if is_raised(flag) and not self._failed(sample, owner).any():
            return _done(record)
        assert self._exchange
        return self._exchange.wait_for(found, owner)

    def _arrived(self, sample: int, read: Future[Bytes]) -> None:
        if not read.cancelled() and not read.exception():
            del self._coming[sample]

    def _place(self, sample: int, owner: int) -> Bytes:
        """Return the memory in which a rank of this node keeps a sample."""
        begin = int(self._owners.offsets[sample])
        return self._regions[owner][begin : begin + int(self._lengths[sample])]

    def _flag(self, sample: int, owner: int) -> int:
        """Return the address of the byte that says whether the sample is there."""
        return self._addresses[owner] + int(self._owners.offsets[sample] + self._lengths[sample])

    def _failed(self, sample: int, owner: int) -> Bytes:
        """Return the byte that says, once the sample is there, whether reading it failed."""
        at = int(self._owners.offsets[sample] + self._lengths[sample]) + 1
        return self._regions[owner][at : at + 1]

    def _measure(self, leaders: NDArray[np.int64], records_ahead: int) -> StoreSize:
        lengths = self._lengths[: len(self._owners.owner)]
        return StoreSize(
            samples_bytes=int(lengths.sum()),
            kept_bytes=int(lengths[self._owners.owner != NO_OWNER].sum()),
            node_bytes=max(
                int(self._owners.rank_bytes[leaders == leader].sum()) for leader in set(leaders)
            ),
            ahead_bytes=records_ahead * int(lengths.max()),
        )


def _done(record: Bytes) -> Future[Bytes]:
    record.flags.writeable = False
    done: Future[Bytes] = Future()
    done.set_result(record)
    return done


def sharing_memory(comm: MPI.Comm) -> MPI.Comm:
    """Return the ranks of `comm` that share memory with this one; a collective.

    If ranks of one node cannot share memory, as between containers, each is a group by itself, and
    a log line says so.
    """
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    problem = ""
    try:
        map_regions(node, _HEADER_BYTES)
        load_library()
    except WindowError as error:
        problem = str(error)
    problems = [text for text in comm.allgather(problem) if text]
    if not problems:
        return node
    node.Free()
    log.warning("hvd_ext: falling back to a store that ranks do not share: %s", problems[0])
    return comm.Split(comm.rank)


def _map(comm: MPI.Comm, node: MPI.Comm, own_bytes: int) -> list[Bytes]:
    """Map the memory of each of the node's ranks; a collective over `comm`.

    Raises:
        HvdExtError: on every rank, if there is not enough memory.
    """
    with agreed(comm):
        try:
            regions = map_regions(node, _HEADER_BYTES + own_bytes, huge=False)
        except WindowError as error:
            raise HvdExtError(
                f"a store on {socket.gethostname()}: {error}: give a smaller size, or use more "
                "nodes"
            ) from error
    return [np.frombuffer(region, np.uint8)[_HEADER_BYTES:] for region in regions]
