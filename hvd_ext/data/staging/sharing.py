"""Pieces of a file that the nodes of a job read once together, and send each other.

In each round every node reads one piece, sends it to the nodes that lack it, and receives their
pieces, one node after the other. Rounds begin together, so that all nodes end with the same one; a
node that waits sleeps. `rounds` assigns the pieces.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from hvd_ext.data.reading import Bytes
from hvd_ext.data.staging.rounds import NO_PIECE, reading_rounds
from hvd_ext.errors import HvdExtError
from hvd_ext.job.abandoned import abandon, abandoned_on_error
from hvd_ext.job.monitored_allgather import monitored_allgather
from hvd_ext.job.stalls import StallReport
from hvd_ext.job.waiting import until
from hvd_ext.variables import STALL_TIMEOUT_S

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger("hvd_ext")

_TAG = 1
_CHECK_BYTES = 4  # a piece is sent with its crc32 at the end


class PieceSharing:
    """A node's part in shared reading; created by one rank of each node at once."""

    def __init__(self, leaders: MPI.Comm, lacks: NDArray[np.bool_]) -> None:
        """Send the others the list of pieces that this node lacks. A collective over `leaders`.

        Args:
            leaders: one rank of each node; used only for this.
            lacks: (pieces,), whether this node lacks a piece.
        """
        from mpi4py import MPI

        self._comm = leaders
        leaders.Set_name("hvd_ext.staging")
        who = f"{socket.gethostname()}, rank {MPI.COMM_WORLD.rank} of the job"
        self._hosts = leaders.allgather(who)
        self._lacks = np.array(leaders.allgather(lacks))
        self._rounds = reading_rounds(self._lacks)
        self._timeout_s = STALL_TIMEOUT_S.read()
        # This round's sends: receiver, request, and data.
        self._sent: list[tuple[int, MPI.Request, Bytes]] = []

    def __del__(self) -> None:
        for _, request, sealed in self.__dict__.get("_sent", ()):
            abandon([request], sealed)

    def pieces(
        self,
        read: Callable[[int, Bytes], None],
        piece_bytes: Callable[[int], int],
        ending: threading.Event,
    ) -> Iterator[tuple[int, Bytes]]:
        """Read this node's part, send it, and yield every piece that it lacks and can get.

        Pieces that cannot be read, or are damaged on the way, are left out, and logged.

        Args:
            read: reads a piece from the file, into memory of its length.
            piece_bytes: length of a piece.
            ending: makes all nodes stop after the current round.

        Raises:
            StallError: a node did not arrive; names it.
        """
        comm, me = self._comm, self._comm.rank
        for row in self._rounds:
            flags = monitored_allgather(
                comm, ending.is_set(), self._timeout_s, "a round of staging", self._hosts
            )
            if any(flags):
                break
            own = int(row[me])
            if own != NO_PIECE:
                sealed = self._read(read, own, piece_bytes(own))
                peers = [int(peer) for peer in np.flatnonzero(self._lacks[:, own]) if peer != me]
                self._sent = [(peer, comm.Isend(sealed, peer, _TAG), sealed) for peer in peers]
                if sealed.size:
                    yield own, sealed[:-_CHECK_BYTES]
            for distance in range(1, comm.size):
                peer = (me - distance) % comm.size
                piece = int(row[peer])
                if piece != NO_PIECE and self._lacks[me, piece]:
                    yield from self._receive(piece, piece_bytes(piece), peer)
            while self._sent:
                peer, request, sealed = self._sent[-1]
                self._wait(request, peer, sealed)
                self._sent.pop()
        comm.Free()

    def _read(self, read: Callable[[int, Bytes], None], piece: int, count: int) -> Bytes:
        """Read a piece and append its checksum; empty if it cannot be read."""
        sealed = np.empty(count + _CHECK_BYTES, np.uint8)
        data = sealed[:-_CHECK_BYTES]
        try:
            read(piece, data)
        except HvdExtError as error:
            log.warning("hvd_ext: piece %d is not sent to other nodes: %s", piece, error)
            return np.empty(0, np.uint8)
        sealed[-_CHECK_BYTES:] = _check(data)
        return sealed

    def _receive(self, piece: int, count: int, peer: int) -> Iterator[tuple[int, Bytes]]:
        from mpi4py import MPI

        sealed = np.empty(count + _CHECK_BYTES, np.uint8)
        status = MPI.Status()
        self._wait(self._comm.Irecv(sealed, peer, _TAG), peer, sealed, status)
        data = sealed[:-_CHECK_BYTES]
        if status.Get_count() < sealed.size:
            return  # the node that should read it has logged the reason
        if np.array_equal(_check(data), sealed[-_CHECK_BYTES:]):
            yield piece, data
        else:
            who = self._hosts[peer]
            log.warning("hvd_ext: piece %d was damaged on its way from %s", piece, who)

    def _wait(
        self, request: MPI.Request, peer: int, data: Bytes, status: MPI.Status | None = None
    ) -> None:
        with abandoned_on_error([request], data):
            if not until(partial(request.Test, status), self._timeout_s):
                report = StallReport([peer], "an exchange of pieces", self._timeout_s)
                raise report.error(self._hosts)


def _check(data: Bytes) -> Bytes:
    return np.array([crc32(data.data)], "<u4").view(np.uint8)
