"""What is under way while what is computed: the order of sends, kernels and waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hvd_ext.spatial import ProcessGrid, SpatialTensor, scatter
from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.exchange.communicator import Communicator, Receive, Send

aten = torch.ops.aten
KERNELS = {aten.convolution.default: "conv", aten.convolution_backward.default: "conv_backward"}


class Kernels(TorchDispatchMode):
    """Notes each convolution, with the width of its input."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        block = args[1] if function is aten.convolution_backward.default else args[0]
        # Global shapes are looked up on the meta device.
        if function in KERNELS and not block.is_meta:
            self.log.append(f"{KERNELS[function]} {block.shape[-1]}")
        return function(*args, **(kwargs or {}))


def noted(comm: Communicator, log: list[str]) -> Communicator:
    """The communicator, with its exchanges noted."""
    start = comm.start

    def start_noted(
        sends: Sequence[Send], receives: Sequence[Receive], like: Tensor
    ) -> Callable[[], None]:
        log.append("start")
        wait = start(sends, receives, like)

        def wait_noted() -> None:
            log.append("wait")
            wait()

        return wait_noted

    comm.start = start_noted  # type: ignore[method-assign]
    return comm


@pytest.mark.parametrize("overlap", [True, False])
def test_interior_is_computed_while_halos_travel(overlap: bool) -> None:
    x, weight = torch.randn(1, 1, 30), torch.randn(1, 1, 3)

    def rank(comm: Communicator) -> tuple[list[str], list[str]]:
        grid = ProcessGrid(width=3, comm=comm, overlap=overlap)
        log: list[str] = []
        noted(grid.space, log)
        leaf = scatter(x, grid).local.requires_grad_()
        w = weight.clone().requires_grad_()
        with Kernels(log):
            y = F.conv1d(SpatialTensor(leaf, grid, (30,)), w, None, 1, 1)
            forward = log.copy()
            log.clear()
            y.local.sum().backward()
        return forward, log

    middle = emulator.run(3, rank)[1]
    # The interior has the shard's 10 cells for 8 outputs, a boundary slab 3 for 1.
    slabs = ["conv 3", "conv 3"]
    if overlap:
        assert middle[0] == ["start", "conv 10", "wait", *slabs]
        back = ["conv_backward 3", "conv_backward 3"]
        assert middle[1] == [*back, "start", "conv_backward 10", "wait"]
    else:
        assert middle[0] == ["start", "wait", "conv 10", *slabs]


def test_the_interior_is_not_copied() -> None:
    """Its kernel reads the shard where it lies, which is what backward keeps, too."""
    read: list[tuple[int, int]] = []

    class Pointers(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is aten.convolution.default and not args[0].is_meta:
                read.append((args[0].untyped_storage().data_ptr(), args[0].shape[2]))
            return function(*args, **(kwargs or {}))

    def rank(comm: Communicator) -> int:
        split = scatter(torch.randn(1, 2, 12, 8), ProcessGrid(height=2, comm=comm))
        if comm.rank == 0:
            with Pointers():
                F.conv2d(split, torch.randn(2, 2, 3, 3), None, 1, 1)
        else:
            F.conv2d(split, torch.randn(2, 2, 3, 3), None, 1, 1)
        return split.local.untyped_storage().data_ptr()

    shard, _ = emulator.run(2, rank)
    assert read[0] == (shard, 6)
