"""Point to point without MPI: sends and receives of a process group by Gloo."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo  # type: ignore[attr-defined]

from hvd_ext.c10d.backend.tensors import read, written
from hvd_ext.c10d.backend.work import Work
from hvd_ext.errors import HvdExtError
from hvd_ext.job.monitored_allgather import monitored_allgather
from hvd_ext.job.stalls import StallReport

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology


class GlooMessage(Work):
    """A message that is under way; Gloo knows that it is over once somebody has waited for it."""

    def __init__(self, name: str, request: Any, held: torch.Tensor, tensor: torch.Tensor) -> None:
        """Note a message.

        Args:
            name: as errors say it.
            request: Gloo's.
            held: 1-D uint8, what Gloo reads or writes.
            tensor: which holds that, or is to have its content.
        """
        super().__init__(name, [tensor])
        self._request, self._held = request, held
        self._limit_s = 0.0
        self._lock = threading.Lock()
        self._waiter: threading.Thread | None = None

    def _wait(self, limit_s: float | None) -> bool:
        with self._lock:
            if self._over.is_set():
                return True
            limit = self._limit_s if limit_s is None else limit_s
            error: BaseException | None = None
            try:
                self._request.wait(timedelta(seconds=limit))
                if self.name == "recv()":
                    self._take()
            except RuntimeError as raised:
                late = "imed out" in str(raised)
                said = str(raised).partition("\n")[0]
                error = self.late(self.name, limit) if late else HvdExtError(f"{self.name}: {said}")
            self.settle(error)
        return True

    def _take(self) -> None:
        with written(self._tensors[0]) as (own,):
            if own.ctypes.data != self._held.data_ptr():
                own[:] = self._held.numpy()

    def _watch(self) -> None:
        """Have it be known when it is over, though nobody waits."""
        if self._waiter is None and not self._over.is_set():
            self._waiter = threading.Thread(target=self._wait, args=(None,), daemon=True)
            self._waiter.start()

    def get_future(self) -> Any:
        self._watch()
        return super().get_future()

    def is_completed(self) -> bool:
        self._watch()
        return self._over.is_set()

    def source_rank(self) -> int:
        return int(self._request._source_rank())

    _source_rank = source_rank


class GlooMessages:
    """One group's messages."""

    def __init__(self, topology: Topology, limit_s: float) -> None:
        """Connect the ranks; collective over the group.

        Args:
            topology: the group's, over a store.
            limit_s: how long a message is waited for.
        """
        self._ranks, self._hosts = topology.ranks, topology.hosts_by_rank
        self._limit_s = limit_s
        comm: Any = topology.borrow("c10d", topology.world).comms[0]
        self._comm = comm
        self._gloo: Any = ProcessGroupGloo(
            PrefixStore(comm.name, comm.store), comm.rank, comm.size, timedelta(seconds=limit_s)
        )

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> GlooMessage:
        """Begin to send a tensor to a rank of the group."""
        held = torch.from_numpy(read(tensor))
        return self._note(
            "send()", "recv()", self._gloo.send([held], peer, tag), held, tensor, peer
        )

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> GlooMessage:
        """Begin to receive a tensor from a rank of the group; None: from any."""
        held = torch.from_numpy(read(tensor))
        if peer is None:
            request = self._gloo.recv_anysource([held], tag)
        else:
            request = self._gloo.recv([held], peer, tag)
        return self._note("recv()", "send()", request, held, tensor, peer)

    def _note(
        self,
        name: str,
        awaited: str,
        request: Any,
        held: torch.Tensor,
        tensor: torch.Tensor,
        peer: int | None,
    ) -> GlooMessage:
        message = GlooMessage(name, request, held, tensor)
        message._limit_s = self._limit_s
        own = self._ranks[self._comm.rank]
        missing = [r for r in self._ranks if r != own] if peer is None else [self._ranks[peer]]

        def late(_: str, waited_s: float) -> HvdExtError:
            occasion = f"the {awaited} that rank {own} waits for"
            report = StallReport(missing, occasion, waited_s, setting="the timeout")
            return report.error(self._hosts)

        message.late = late
        return message

    def meet(self, limit_s: float) -> None:
        """Wait until every rank is here.

        Raises:
            StallError: on every rank that arrived, naming those that did not.
        """
        monitored_allgather(
            *(self._comm, None, limit_s, "monitored_barrier()", self._hosts, self._ranks),
            setting="the timeout",
        )

    def close(self) -> None:
        """Disconnect."""
        self._gloo = None
