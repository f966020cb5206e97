"""The communicator of spatial layers: MPI's, with GPUs' memory exchanged directly.

The first exchange of tensors on a GPU opens the memory of the group's other ranks, and checks
that it is right. If anything is missing or wrong on one rank, all of them go through the host.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from hvd_ext import variables
from hvd_ext.events import CommEvent, emit, listening, region
from hvd_ext.shm.regions import WindowError, on_every_rank_of
from hvd_ext.spatial.exchange.communicator import MpiCommunicator, Receive, Send
from hvd_ext.spatial.exchange.device import gpu

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.spatial.exchange.device.halos import Halos
    from hvd_ext.spatial.exchange.device.sums import Sums

log = logging.getLogger("hvd_ext")


@dataclass(frozen=True, slots=True)
class _OnGpus:
    halos: Halos
    sums: Sums | None


class DeviceCommunicator(MpiCommunicator):
    """Ranks of MPI whose tensors may be on GPUs."""

    def __init__(self, comm: MPI.Comm, name: str = "hvd_ext.spatial") -> None:
        """Take a private copy of `comm`; collective over it."""
        super().__init__(comm, name)
        self._on_gpus: _OnGpus | None = None
        self._asked = False

    @property
    def is_direct(self) -> bool:
        """Whether tensors have gone directly from GPU to GPU, not through the host."""
        return self._on_gpus is not None

    def start(
        self, sends: Sequence[Send], receives: Sequence[Receive], like: Tensor
    ) -> Callable[[], None]:
        direct = self._direct(like)
        if direct is None:
            return super().start(sends, receives, like)
        begun_s = time.monotonic()
        with region("halo", kind="communication"):
            finish = direct.halos.start(sends, receives)
        moved = sum(piece.nbytes for _, pieces in sends for piece in pieces)

        def wait() -> None:
            entered_s = time.monotonic()
            with region("halo", kind="communication"):
                finish()
            if listening():
                blocked_s = time.monotonic() - entered_s
                emit(CommEvent("halo", "gpu", moved, self.size, begun_s, 0.0, blocked_s))

        return wait

    def allreduce(self, tensor: Tensor) -> Tensor:
        direct = self._direct(tensor) if self.size > 1 else None
        if direct is None or direct.sums is None or not direct.sums.serves(tensor):
            return super().allreduce(tensor)
        begun_s = time.monotonic()
        with region("sum over space", kind="communication"):
            total = direct.sums.sum(tensor)
        if listening():
            took_s = time.monotonic() - begun_s
            emit(CommEvent("allreduce", "gpu", tensor.nbytes, self.size, begun_s, 0.0, took_s))
        return total

    def _direct(self, like: Tensor) -> _OnGpus | None:
        """Return the exchanges between GPUs; the first call, which makes them, is collective."""
        if not gpu.is_on_gpu(like):
            return None
        if not self._asked:
            self._asked = True
            try:
                self._on_gpus = self._open(like)
            except WindowError as error:
                if self.rank == 0:
                    log.warning("hvd_ext: halos of GPUs go through the host's memory: %s", error)
        return self._on_gpus

    def _open(self, like: Tensor) -> _OnGpus:
        """Open the other ranks' memory; collective.

        Raises:
            WindowError: on every rank, if it cannot be opened, or exchanges are wrong.
        """
        # CuPy is imported only if there is a GPU.
        from hvd_ext.spatial.exchange.device.halos import Halos
        from hvd_ext.spatial.exchange.device.peers import Peers
        from hvd_ext.spatial.exchange.device.self_check import OnHost, check
        from hvd_ext.spatial.exchange.device.sums import Sums

        def asked() -> None:
            if not variables.DEVICE_HALOS.read():
                raise WindowError("HVD_EXT_DEVICE_HALOS=0")

        on_every_rank_of(self._comm, asked)
        peers = Peers(self._comm, gpu.ordinal_of(like), self._stalled)
        halos = Halos(peers, super().start)
        sums = Sums(peers) if len(peers.ranks) == self.size else None
        check(peers, halos, sums, OnHost(super().start, super().allreduce), like)
        return _OnGpus(halos, sums)
