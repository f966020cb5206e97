"""Sums over space on GPUs: each rank adds the tensors of all ranks, straight from their memory.

The kernel of the gradient arena adds them in the order of the ranks, in 32 bits, and rounds once,
so on every rank the sum is bit-identical to that on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hvd_ext.arena.cuda.kernels import SERVED
from hvd_ext.spatial.exchange.device import gpu
from hvd_ext.spatial.exchange.device.peers import SLOTS, SUM_BYTES, SUMMAND, Peers
from hvd_ext.tensors import dtype_name

_OCCASION = "a sum over space"
_ALIGNED_BYTES = 16


class Sums:
    """Sums of the ranks of a group, all of one node."""

    def __init__(self, peers: Peers) -> None:
        """Compile the kernels."""
        self._peers = peers
        with peers.on_gpu():
            self._kernels = {
                name: peers.kernel("hvd_ext.arena.cuda", "reduce.cu", f"reduce_{name}")
                for name in SERVED
            }
        self._number = 0

    @staticmethod
    def serves(tensor: Tensor) -> bool:
        """Whether the kernel has this dtype; the same on all ranks."""
        return dtype_name(tensor.dtype) in SERVED and tensor.numel() > 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum every rank's tensor, in parts that fit the memory for sums."""
        peers, own = self._peers, tensor.detach().contiguous()
        whole = -(-own.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES // own.element_size()
        total = torch.empty(whole, dtype=own.dtype, device=own.device)
        kernel = self._kernels[dtype_name(own.dtype)]
        source, into = gpu.address_of(own), gpu.address_of(total)
        with peers.on_gpu():
            stream = gpu.current_stream(peers.ordinal)
            peers.follow(stream)
            for begin in range(0, own.nbytes, SUM_BYTES):
                nbytes = min(SUM_BYTES, own.nbytes - begin)
                self._part(kernel, source + begin, into + begin, nbytes)
            peers.lead(stream)
        return total[: own.numel()].view(own.shape)

    def _part(self, kernel: object, source: int, into: int, nbytes: int) -> None:
        peers, runtime = self._peers, self._peers.runtime
        self._number += 1
        slot = self._number % SLOTS
        others = [rank for rank in peers.ranks if rank != peers.comm.rank]
        # No rank still reads the last summand in this slot: all have written the one after it, in
        # the stream in which they read.
        mine = peers.sums[peers.comm.rank] + slot * SUM_BYTES
        kind = runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(mine, source, nbytes, kind, peers.stream.ptr)
        peers.say(SUMMAND + slot, self._number)
        for rank in others:
            peers.hear(rank, SUMMAND + slot, self._number, _OCCASION)
        peers.reduce(kernel, into, nbytes, slot * SUM_BYTES)
