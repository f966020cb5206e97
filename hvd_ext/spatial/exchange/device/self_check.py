"""The check before the first exchange between a machine's GPUs: are exchanges right?

Messages of many lengths go from every rank to every other for some rounds, and sums are taken. The
rounds follow each other without a wait of the host, so that a missing synchronization between
streams, processes or GPUs shows. Their bits are compared with those of the same exchanges on the
host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hvd_ext.shm.regions import WindowError, on_every_rank_of
from hvd_ext.spatial.exchange.communicator import Receive, Send
from hvd_ext.spatial.exchange.device import gpu
from hvd_ext.spatial.exchange.device.peers import Peers

if TYPE_CHECKING:
    from hvd_ext.spatial.exchange.device.halos import Halos
    from hvd_ext.spatial.exchange.device.sums import Sums

ROUNDS = 24
_COUNTS = (1, 7, 4_097, 1_024, 70_001, 33)


@dataclass(frozen=True, slots=True)
class OnHost:
    """Exchanges of the same tensors through the host, as a Communicator's.

    Attributes:
        start: starts to exchange messages.
        allreduce: takes sums.
    """

    start: Callable[[Sequence[Send], Sequence[Receive], Tensor], Callable[[], None]]
    allreduce: Callable[[Tensor], Tensor]


def check(peers: Peers, halos: Halos, sums: Sums | None, host: OnHost, like: Tensor) -> None:
    """Compare exchanges between GPUs with those through the host; collective.

    Args:
        peers: the group.
        halos: exchanges messages.
        sums: takes sums; None if the host does.
        host: exchanges through the host.
        like: any tensor on this rank's GPU.

    Raises:
        WindowError: on every rank, if something differs on one.
    """
    comm = peers.comm
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    generator = torch.Generator().manual_seed(comm.rank)
    found: list[tuple[str, list[Tensor]]] = []
    stream = gpu.current_stream(peers.ordinal)

    def read(tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy tensors in torch's stream."""
        copies = [torch.empty_like(tensor) for tensor in tensors]
        kind = peers.runtime.memcpyDeviceToDevice
        with peers.on_gpu():
            for to, of in zip(copies, tensors, strict=True):
                places = gpu.address_of(to), gpu.address_of(of)
                peers.runtime.memcpyAsync(*places, of.nbytes, kind, stream)
        alive.append(tensors)
        return copies

    alive: list[Sequence[Tensor]] = []
    kept = []
    for number in range(ROUNDS):
        count = _COUNTS[number % len(_COUNTS)]
        # A face of a block, whose elements are in many places.
        block = torch.randn((count, 3), generator=generator).to(like.device)
        kept.append(block)
        received = [(rank, block.new_empty(count)) for rank in others]
        halos.start([(rank, [block[:, 1]]) for rank in others], received)()
        found.append((f"a message of {count} numbers", read([tensor for _, tensor in received])))
        if sums is not None:
            found.append((f"a sum of {3 * count} numbers", read([sums.sum(block)])))
    peers.runtime.streamSynchronize(stream)
    expected: list[list[Tensor]] = []
    for block in kept:
        received = [(rank, block.new_empty(len(block))) for rank in others]
        host.start([(rank, [block[:, 1]]) for rank in others], received, block)()
        expected.append([tensor for _, tensor in received])
        if sums is not None:
            expected.append([host.allreduce(block)])

    def compare() -> None:
        for (what, got), wanted in zip(found, expected, strict=True):
            for one, other in zip(got, wanted, strict=True):
                # Compares bits, so that no rounding error is accepted.
                if not torch.equal(one.view(torch.int32), other.view(torch.int32)):
                    raise WindowError(f"{what} was wrong between GPUs")

    on_every_rank_of(comm, compare)
