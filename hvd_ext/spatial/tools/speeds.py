"""The speed of this rank's computing and of messages, from which plans are computed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from hvd_ext.events import tuning

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Speeds:
    """Speeds of a rank and of the link between two ranks; see `measure_speeds`.

    Attributes:
        flops_per_s: speed of one rank in a convolution.
        bytes_per_s: bandwidth of one message between two ranks.
        latency_s: latency of a message.
    """

    flops_per_s: float
    bytes_per_s: float
    latency_s: float


def measure_speeds(comm: MPI.Comm | None = None) -> Speeds:
    """Time a convolution on this rank, and a message between two.

    Args:
        comm: ranks, of which the first two send messages; the result is the same on all. Without
            it, or with one rank, a copy in memory replaces the message, and no link is faster than
            that.

    Returns:
        The speeds, for `plan`.
    """
    flops_per_s = _convolution_flops_per_s()
    if comm is None or comm.size == 1:
        block = torch.zeros(1 << 22)
        copy_s = _best_s(lambda: block.clone())
        return Speeds(flops_per_s, block.nbytes / copy_s, 1e-6)
    with tuning():
        latency_s, large_s = (_message_s(comm, nbytes) for nbytes in (8, 1 << 22))
    mine = Speeds(flops_per_s, (1 << 22) / max(large_s - latency_s, 1e-9), latency_s)
    answer: Speeds = comm.bcast(mine)
    return answer


def _convolution_flops_per_s() -> float:
    conv = nn.Conv2d(64, 64, 3, padding=1, bias=False)
    image = torch.zeros(1, 64, 64, 64)
    with torch.no_grad():
        best_s = _best_s(lambda: conv(image))
    return 2 * image.numel() * conv.weight[0].numel() / best_s


def _message_s(comm: MPI.Comm, nbytes: int) -> float:
    """Time one way of a message between the first two ranks."""
    block = bytearray(nbytes)

    def there_and_back() -> None:
        if comm.rank == 0:
            comm.Send(block, 1)
            comm.Recv(block, 1)
        elif comm.rank == 1:
            comm.Recv(block, 0)
            comm.Send(block, 0)

    return _best_s(there_and_back) / 2


def _best_s(call: Callable[[], object], times: int = 7) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best
