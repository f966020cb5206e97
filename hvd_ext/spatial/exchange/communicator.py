"""The interface of a communication library for spatial layers, and its version for MPI.

Calls come in the same order on every rank of a communicator, because each call follows from global
shapes. The number of earlier exchanges identifies a message.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from hvd_ext.errors import StallError
from hvd_ext.events import CommEvent, emit, listening, region
from hvd_ext.job.abandoned import abandon, abandoned_on_error
from hvd_ext.job.stalls import StallReport
from hvd_ext.job.waiting import until
from hvd_ext.tensors import as_bytes
from hvd_ext.variables import STALL_TIMEOUT_S

if TYPE_CHECKING:
    from mpi4py import MPI

# A peer, and the pieces of one message to it, with any strides.
Send = tuple[int, Sequence[Tensor]]
# A peer, and the memory for its message: 1-D and contiguous.
Receive = tuple[int, Tensor]
# MPI guarantees tags up to 32767; exchanges with this many others between them never overlap.
_TAGS = 32_000
# Usually a neighbor arrives before this many polls.
_LOOKS = 5000


def joined(pieces: Sequence[Tensor]) -> Tensor:
    """Copy pieces into one message, 1-D, in new memory."""
    return torch.cat([piece.detach().reshape(-1) for piece in pieces])


class Communicator(Protocol):
    """A group of ranks that exchange blocks of tensors."""

    rank: int
    size: int

    def start(
        self, sends: Sequence[Send], receives: Sequence[Receive], like: Tensor
    ) -> Callable[[], None]:
        """Start to send pieces to peers and to fill memory; returns the call that waits.

        Every rank of the group calls it, also ranks without messages in this exchange. The memory
        of messages must not be used before the call that waits.

        Args:
            sends: one message to each peer.
            receives: one message from each peer.
            like: any tensor of this exchange's dtype and device.
        """

    def allreduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of all ranks' `tensor`, with the same bits on each rank."""

    def group(self, members: Sequence[int]) -> Communicator:
        """Make the communicator of `members`, which include this rank; collective."""


class MpiCommunicator:
    """Ranks of MPI, over a private copy of their communicator."""

    def __init__(self, comm: MPI.Comm, name: str = "hvd_ext.spatial") -> None:
        """Take a private copy of `comm`; collective over it."""
        from mpi4py import MPI

        self._comm = comm.Dup()
        self._comm.Set_name(name)
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size
        # The names of ranks in messages: number in the world, and host.
        self._names: list[tuple[int, str]] = self._comm.allgather(
            (MPI.COMM_WORLD.rank, socket.gethostname())
        )
        self._started = 0
        self._unfinished: list[tuple[list[MPI.Request], list[Any]]] = []

    def start(
        self, sends: Sequence[Send], receives: Sequence[Receive], like: Tensor
    ) -> Callable[[], None]:
        self._started += 1
        tag = self._started % _TAGS
        # Device memory is copied through the host, so MPI needs no support for devices.
        arrivals = [
            (peer, tensor, tensor if tensor.device.type == "cpu" else tensor.cpu())
            for peer, tensor in receives
        ]
        leaving = [(peer, joined(pieces).cpu()) for peer, pieces in sends]
        requests = [self._comm.Irecv(as_bytes(host), peer, tag) for peer, _, host in arrivals]
        requests += [self._comm.Isend(as_bytes(host), peer, tag) for peer, host in leaving]
        self._reap()
        keep = (requests, [leaving, arrivals])
        self._unfinished.append(keep)
        peers = [*(peer for peer, _ in receives), *(peer for peer, _ in sends)]

        def wait() -> None:
            entered_s = time.monotonic()
            with region("halo", kind="communication"), abandoned_on_error(*keep):
                self._wait(requests, peers, "a halo exchange")
            self._unfinished = [kept for kept in self._unfinished if kept is not keep]
            for _, tensor, host in arrivals:
                if host is not tensor:
                    tensor.copy_(host)
            if listening():
                moved = sum(host.nbytes for _, host in leaving)
                blocked_s = time.monotonic() - entered_s
                emit(CommEvent("halo", "direct", moved, self.size, entered_s, 0.0, blocked_s))

        return wait

    def allreduce(self, tensor: Tensor) -> Tensor:
        if self.size == 1:
            return tensor.clone()
        begun_s = time.monotonic()
        host = tensor.detach().to("cpu", copy=True).contiguous()
        if host.dtype in (torch.float16, torch.bfloat16):
            host = host.float()
        # Every rank sums in the order of the ranks, so all have the same bits, whatever the MPI
        # library's algorithm.
        rows = torch.empty((self.size, *host.shape), dtype=host.dtype)
        others = [rank for rank in range(self.size) if rank != self.rank]
        with region("sum over space", kind="communication"):
            request = self._comm.Iallgather(as_bytes(host), as_bytes(rows))
            with abandoned_on_error([request], host, rows):
                self._wait([request], others, "a sum over space")
        total = rows[0].clone()
        for row in rows[1:]:
            total += row
        if listening():
            took_s = time.monotonic() - begun_s
            emit(CommEvent("allreduce", "allgather", host.nbytes, self.size, begun_s, 0.0, took_s))
        return total.to(tensor.device, tensor.dtype)

    def __del__(self) -> None:
        for requests, memory in self.__dict__.get("_unfinished", ()):
            abandon(requests, memory)

    def group(self, members: Sequence[int]) -> Communicator:
        part = self._comm.Split(color=members[0], key=members.index(self.rank))
        made = type(self)(part)
        part.Free()
        return made

    def _wait(self, requests: list[MPI.Request], peers: list[int], occasion: str) -> None:
        """Wait for all requests.

        Raises:
            StallError: some did not end in time; names the ranks that are late.
        """
        from mpi4py import MPI

        if until(
            lambda: MPI.Request.Testall(requests),
            STALL_TIMEOUT_S.read(),
            looks=_LOOKS,
        ):
            return
        if len(requests) < len(peers):
            # A collective does not report which ranks it lacks.
            raise StallError(f"one or more of {self._stalled(peers, occasion)}")
        pairs = zip(peers, requests, strict=True)
        if late := [peer for peer, request in pairs if not request.Test()]:
            raise StallError(self._stalled(late, occasion))

    def _stalled(self, late: Sequence[int], occasion: str) -> str:
        hosts = dict(self._names[peer] for peer in late)
        report = StallReport(sorted(hosts), occasion, STALL_TIMEOUT_S.read())
        return report.sentence([hosts.get(rank, "") for rank in range(max(hosts) + 1)])

    def _reap(self) -> None:
        """Free the buffers of exchanges that ended without a wait."""
        from mpi4py import MPI

        self._unfinished = [kept for kept in self._unfinished if not MPI.Request.Testall(kept[0])]
