"""One rank's work on a split model, without data: shapes, bytes, flops.

Tensors are on torch's meta device, which computes shapes only, and messages
are counted instead of sent. So a plan follows the layers exactly, halo by halo, for samples and
grids of any size, on one processor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from hvd_ext.spatial.convert import convert
from hvd_ext.spatial.exchange.communicator import Communicator, Receive, Send
from hvd_ext.spatial.geometry.partition import lengths, shard
from hvd_ext.spatial.grid import GridShape, ProcessGrid
from hvd_ext.spatial.layers.filters import OwnParameter
from hvd_ext.spatial.tensor import SpatialTensor
from hvd_ext.spatial.torch_internals import TorchDispatchMode, overloads, storage_id


@dataclass
class LayerCost:
    """The work of one rank in one layer, forward.

    Attributes:
        name: name of the submodule, as in `named_modules`.
        kind: its class.
        shape: global shape of its output; empty if that is not a tensor.
        local_shape: shape of this rank's shard of the output; the global one if it is replicated.
        partitioned: whether the output is split over the grid.
        flops: multiplications and additions of convolutions and matrix products.
        saved_bytes: bytes kept for backward.
        sent_bytes: bytes sent to other ranks: halos, gathers, sums.
        messages: number of exchanges.
        halo: "overlapped" if it travels while the interior is computed, "whole" if the layer waits
            for it, with "measured" if GPUs measured that; "" without halos.
        parameter_bytes: bytes of the layer's own parameters.
        gradient_bytes: bytes sent to average their gradients over the ranks that share a sample.
        shares_filters: whether this rank has only some of the layer's filters.
    """

    name: str
    kind: str
    shape: tuple[int, ...] = ()
    local_shape: tuple[int, ...] = ()
    partitioned: bool = False
    flops: int = 0
    saved_bytes: int = 0
    sent_bytes: int = 0
    messages: int = 0
    halo: str = ""
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    shares_filters: bool = False


def dry_run(
    model: nn.Module,
    shape: Sequence[int],
    grid: GridShape,
    rank: int,
    *,
    gather_before: Sequence[str] = (),
    split_filters: Sequence[str] = (),
    dtype: torch.dtype = torch.float32,
    ways: Mapping[Hashable, Any] | None = None,
) -> list[LayerCost]:
    """Go through a forward pass as `rank` of `grid`.

    Args:
        model: not converted; it is copied, and stays unchanged.
        shape: (N, C, *space) of the input.
        grid: ranks that share a sample.
        rank: one of them.
        gather_before: see `convert`.
        split_filters: see `convert`.
        dtype: type of the input; parameters keep their own.
        ways: a ProcessGrid's measurements on GPUs.

    Returns:
        The layers in the order in which they begin; those that do nothing are left out.

    Raises:
        UnsupportedError: the model has an operation that cannot be split; names the layer.
    """
    ledger = _Ledger(grid)
    comm = _Counter(rank, grid.size, ledger)
    process_grid = ProcessGrid(*grid.axes, comm=comm, channels=grid.channels)
    process_grid.ways.update(ways or {})
    process_grid.on_halo = ledger.halo
    split = convert(
        _without_data(model),
        process_grid,
        gather_before=gather_before,
        split_filters=split_filters,
    )
    for name, module in split.named_modules():
        ledger.watch(module, name)
    extents = tuple(shape[2:])
    box = shard(extents, grid.parts(len(extents)), process_grid.coordinates(len(extents)))
    local = torch.empty((*shape[:2], *lengths(box)), dtype=dtype, device="meta")
    # Layers also compute their global shapes once on torch's meta device, which must not count.
    split(SpatialTensor(local, process_grid, extents))
    ledger.layers.clear()
    ledger.kept = {storage_id(p): p for p in split.parameters()}
    with ledger, torch.autograd.graph.saved_tensors_hooks(ledger.save, lambda saved: saved):
        split(SpatialTensor(local, process_grid, extents))
    return [layer for layer in ledger.layers if layer.flops or layer.shape or layer.sent_bytes]


@dataclass
class _Ledger(TorchDispatchMode):
    """Counts everything for the innermost module that is running."""

    grid: GridShape
    layers: list[LayerCost] = field(default_factory=list)
    running: list[LayerCost] = field(default_factory=list)
    # Counted storages, with tensors that keep their ids from being reused.
    kept: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def watch(self, module: nn.Module, name: str) -> None:
        # Before the hook that gathers, because its bytes belong to this layer.
        module.register_forward_pre_hook(self._entering(name), prepend=True)
        module.register_forward_hook(self._leave, always_call=True)

    def _entering(self, name: str) -> Callable[[nn.Module, Any], None]:
        def enter(module: nn.Module, args: Any) -> None:
            layer = LayerCost(name, type(module).__name__)
            for parameter in module.parameters(recurse=False):
                layer.parameter_bytes += parameter.nbytes
                own = isinstance(parameter, OwnParameter)
                layer.shares_filters |= own
                ranks = self.grid.size // (self.grid.filters if own else 1)
                # Counted as a reduce-scatter and an allgather.
                layer.gradient_bytes += 2 * parameter.nbytes * (ranks - 1) // ranks
            self.layers.append(layer)
            self.running.append(layer)

        return enter

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        layer = self.running.pop()
        # A container's output is its last layer's.
        if not isinstance(output, Tensor) or any(True for _ in module.children()):
            return
        layer.shape = tuple(output.shape)
        layer.partitioned = isinstance(output, SpatialTensor)
        local = output.local if isinstance(output, SpatialTensor) else output
        layer.local_shape = tuple(local.shape)

    def send(self, nbytes: int) -> None:
        if self.running:
            self.running[-1].sent_bytes += nbytes
            self.running[-1].messages += 1

    def halo(self, overlaps: bool, measured: bool) -> None:
        if self.running:
            way = "overlapped" if overlaps else "whole"
            self.running[-1].halo = way + " (measured)" * measured

    def save(self, tensor: Tensor) -> Tensor:
        """Count the memory that autograd keeps, each piece once."""
        storage = storage_id(tensor)
        if storage not in self.kept:
            self.kept[storage] = tensor
            if self.running:
                self.running[-1].saved_bytes += tensor.untyped_storage().nbytes()
        return tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and count its flops."""
        output = func(*args, **(kwargs or {}))
        formula = flop_registry.get(overloads(func))
        if formula is not None and self.running:
            self.running[-1].flops += formula(*args, **(kwargs or {}), out_val=output)
        return output


def _without_data(model: nn.Module) -> nn.Module:
    """Copy a model to the meta device without first copying the weights, which may be large."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in model.buffers():
        # Keeps tensors whose values are read, such as a batch norm's count of batches.
        number = buffer.ndim == 0
        kept = buffer.new_zeros((), device="cpu") if number and buffer.is_meta else buffer
        memo[id(buffer)] = kept.detach().clone() if number else buffer.detach().to("meta")
    return copy.deepcopy(model, memo)


class _Counter:
    """A communicator that only counts messages."""

    def __init__(self, rank: int, size: int, ledger: _Ledger) -> None:
        self.rank, self.size, self._ledger = rank, size, ledger

    def start(
        self, sends: Sequence[Send], receives: Sequence[Receive], like: Tensor
    ) -> Callable[[], None]:
        """Count an exchange; there is nothing to wait for."""
        self._ledger.send(sum(piece.nbytes for _, pieces in sends for piece in pieces))
        return lambda: None

    def allreduce(self, tensor: Tensor) -> Tensor:
        if self.size > 1:
            self._ledger.send(tensor.nbytes * (self.size - 1))
        return torch.empty_like(tensor)

    def group(self, members: Sequence[int]) -> Communicator:
        return _Counter(members.index(self.rank), len(members), self._ledger)
