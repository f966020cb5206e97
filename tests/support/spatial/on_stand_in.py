"""Split tensors whose exchanges take them for a GPU's, on the stand-in for CuPy.

torch computes on the CPU, at once. The stand-in's stream that stands for torch's is waited for
wherever an exchange hands tensors back: what the exchange has not made that stream wait for is
not there then.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hvd_ext.spatial.exchange.communicator import Communicator, Receive, Send
from hvd_ext.spatial.exchange.device import gpu, peers, self_check
from hvd_ext.spatial.exchange.device.communicator import DeviceCommunicator
from testbed import cuda_stand_in

if TYPE_CHECKING:
    import pytest
    from mpi4py import MPI

cuda_stand_in.install()
cuda: Any = cuda_stand_in.cuda
_streams: dict[int, Any] = {}


def ordinal(rank: int) -> int:
    return rank % cuda_stand_in.streams.DEVICES


def stream(device: int) -> Any:
    """The stand-in's stream for torch's on a device."""
    if device not in _streams:
        with cuda.Device(device):
            _streams[device] = cuda.Stream(non_blocking=True)
    return _streams[device]


def address_of(tensor: Tensor) -> int:
    """A tensor's address, as memory of the device until torch frees it."""
    storage = tensor.untyped_storage()
    place = storage.data_ptr()
    cuda_stand_in.memory.adopt(place, storage.nbytes())
    weakref.finalize(storage, cuda_stand_in.memory.disown, place).atexit = False
    return tensor.data_ptr()


def take_for_gpus(patch: pytest.MonkeyPatch, rank: int) -> None:
    """Have exchanges take torch's tensors for a GPU's in this process."""
    patch.setattr(gpu, "is_on_gpu", lambda tensor: tensor.device.type == "cpu")
    patch.setattr(gpu, "ordinal_of", lambda tensor: ordinal(rank))
    patch.setattr(gpu, "current_stream", lambda device: stream(device).ptr)
    patch.setattr(gpu, "synchronize", lambda tensor: stream(ordinal(rank)).synchronize())
    patch.setattr(gpu, "address_of", address_of)


def pretend_nodes(patch: pytest.MonkeyPatch, ranks_per_node: int, world: MPI.Comm) -> None:
    """Have only so many consecutive ranks of the world share memory."""

    def node_of(comm: MPI.Comm) -> MPI.Comm:
        return comm.Split(world.rank // ranks_per_node, comm.rank)

    patch.setattr(peers, "node_of", node_of)


class OnStandIn(DeviceCommunicator):
    """Hands tensors back to torch when the stream that stands for torch's has come there.

    Attributes:
        opened: how often this process has opened the memory of other ranks' GPUs.
    """

    opened = 0

    def _open(self, like: Tensor) -> Any:
        made = super()._open(like)
        OnStandIn.opened += 1
        return made

    def start(
        self, sends: Sequence[Send], receives: Sequence[Receive], like: Tensor
    ) -> Callable[[], None]:
        finish = super().start(sends, receives, like)
        # What is freed goes to the next one of torch's stream, and so stays as long as here.
        held = [sends, receives]

        def wait() -> None:
            finish()
            self._settle(like)
            held.clear()

        return wait

    def allreduce(self, tensor: Tensor) -> Tensor:
        total = super().allreduce(tensor)
        self._settle(tensor)
        return total

    def group(self, members: Sequence[int]) -> Communicator:
        made = super().group(members)
        assert isinstance(made, OnStandIn)
        return made

    def _settle(self, like: Tensor) -> None:
        if self.is_direct:
            stream(gpu.ordinal_of(like)).synchronize()


ROUNDS, LATE_S = 8, 0.03


def rounds(comm: MPI.Comm, patch: pytest.MonkeyPatch) -> list[str]:
    """What is wrong with messages and sums of GPUs that are late in turn; collective.

    torch's stream makes what is sent, and spoils it when the exchange is over. In all rounds but
    every fourth messages go to the next rank only, and there are no sums, so that a rank may be
    ahead of its reader.
    """
    patch.setattr(self_check, "check", lambda *_: None)
    record = cuda.runtime.eventRecord

    def record_late(event: int, into: int) -> None:
        time.sleep(LATE_S / 10)
        record(event, into)

    made, like = DeviceCommunicator(comm), torch.zeros(1)
    direct = made._direct(like)
    assert direct is not None
    patch.setattr(cuda.runtime, "eventRecord", record_late)
    ours, own = stream(ordinal(comm.rank)), direct.halos._peers.stream
    found: list[tuple[str, Tensor, Tensor]] = []
    alive: list[object] = [like]  # torch frees memory when its stream comes there
    for number in range(1, ROUNDS + 1):
        block, place = divmod(number - 1, 4)
        # With the last rank late, those before it may be ahead of what it has read.
        if place != 2 and block % comm.size == comm.size - 1 - comm.rank:
            ours.launch_host_func(time.sleep, LATE_S)
            own.launch_host_func(time.sleep, 12 * LATE_S)
        both_ways = place == 3
        to = [rank for rank in _others(comm.rank, both_ways) if rank < comm.size]
        of = [r for r in range(comm.size) if comm.rank in _others(r, both_ways)]
        sent, received = torch.zeros(40, 3), [(rank, torch.zeros(40)) for rank in of]
        _later(ours, sent.fill_, float(100 * number + comm.rank))
        alive += [sent, received]
        wait = made.start([(rank, [sent[:, 1]]) for rank in to], received, like)
        wait()
        _later(ours, sent.fill_, -1.0)
        for rank, into in received:
            got, wanted = torch.zeros(40), torch.full((40,), float(100 * number + rank))
            _later(ours, got.copy_, into)
            found.append((f"round {number}: from {rank}", got, wanted))
        if direct.sums is not None and both_ways:
            summand, got = torch.zeros(33), torch.zeros(33)
            _later(ours, summand.fill_, float(number + comm.rank))
            summed = made.allreduce(summand)
            _later(ours, got.copy_, summed)
            alive += [summand, summed]
            total = sum(float(number + rank) for rank in range(comm.size))
            found.append((f"round {number}: sum", got, torch.full((33,), total)))
            _later(ours, summand.fill_, -1.0)
    patch.setattr(cuda.runtime, "eventRecord", record)
    try:
        ours.synchronize()
    except RuntimeError as error:
        return [str(error)]
    finally:
        # A mistake must not reach the next test.
        with cuda.Device(ordinal(comm.rank)), contextlib.suppress(RuntimeError):
            cuda.runtime.deviceSynchronize()
    return [what for what, got, wanted in found if not torch.equal(got, wanted)]


def _others(rank: int, both_ways: bool) -> list[int]:
    return [rank + 1, *([rank - 1] if both_ways and rank else [])]


def _later(ours: Any, call: Callable[..., object], *arguments: Any) -> None:
    ours.launch_host_func(lambda _: call(*arguments), None)
