"""Checks, in one process and without MPI, that a split model equals the unsplit one."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from hvd_ext.spatial.convert import convert
from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.exchange.communicator import Communicator
from hvd_ext.spatial.geometry.partition import Box
from hvd_ext.spatial.grid import GridShape, ProcessGrid
from hvd_ext.spatial.layers.gather import gather, scatter
from hvd_ext.spatial.tensor import SpatialTensor

# In fp64 the order of summation leaves some 1e-15 per layer.
TOLERANCE = 1e-10
# A gradient that is zero but for rounding (a bias before a batch norm) has no scale of its
# own; this share of the steepest one stands in.
_NOISE = 1e-6
_GRADIENT = "gradient of "


@dataclass(frozen=True)
class Difference:
    """How far one tensor of the split model is from the unsplit model's.

    Attributes:
        name: "output", "input gradient", "gradient of X" or "buffer X".
        error: largest difference over the largest value.
    """

    name: str
    error: float


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    Attributes:
        shape: of the input.
        grid: over which it was split.
        differences: of all tensors compared, the largest first.
        tolerance: up to which they count as equal.
    """

    shape: tuple[int, ...]
    grid: GridShape
    differences: tuple[Difference, ...]
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the split model is the unsplit one to rounding."""
        return all(difference.error <= self.tolerance for difference in self.differences)

    def __str__(self) -> str:
        worst = self.differences[0]
        verdict = "equals" if self.passed else "DIFFERS FROM"
        lines = [
            f"split {self.grid} on {self.shape} {verdict} unsplit: {len(self.differences)} tensors"
            f" compared, the worst is {worst.name} by {worst.error:.1e}"
        ]
        if not self.passed:
            wrong = [d for d in self.differences if not d.error <= self.tolerance]
            lines += [f"  {d.name}: {d.error:.1e}" for d in wrong]
        return "\n".join(lines)


def verify(
    model: nn.Module,
    shape: Sequence[int],
    grid: GridShape,
    *,
    gather_before: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Verification:
    """Compare a model, split over emulated ranks, with itself unsplit.

    Output, gradients of the input and of all parameters, and buffers (running statistics)
    are compared in fp64 on random data. Dropout is off, for its masks differ over space.

    Args:
        model: not converted; it is copied, and stays as it is.
        shape: (N, C, *space) of the input.
        grid: ranks that share a sample.
        gather_before: as `convert` takes it.
        tolerance: up to which relative differences are rounding.
        seed: of the data.

    Raises:
        UnsupportedError: the model does something that cannot be split; names the layer.
    """
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(*shape, generator=generator, dtype=torch.float64)
    unsplit = _prepared(model)
    whole = batch.clone().requires_grad_()
    output = unsplit(whole)
    # An arbitrary direction: the gradient of one number depends on every output.
    direction = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    (output * direction).sum().backward()

    def work(comm: Communicator) -> tuple[dict[str, Tensor], Box, Tensor]:
        process_grid = ProcessGrid(*grid.axes, comm=comm)
        split = convert(_prepared(model), process_grid, gather_before=gather_before)
        x = scatter(batch, process_grid)
        x.local.requires_grad_()
        y = split(x)
        y = gather(y) if isinstance(y, SpatialTensor) else y
        (y * direction).sum().backward()
        gradient = torch.zeros_like(x.local) if x.local.grad is None else x.local.grad
        return {"output": y.detach(), **_state(split)}, x.box, gradient

    ranks = emulator.run(grid.size, work)
    input_gradient = torch.empty_like(batch)
    for _, box, gradient in ranks:
        cells = (slice(None), slice(None), *(slice(begin, end) for begin, end in box))
        input_gradient[cells] = gradient
    expected = {"output": output.detach(), **_state(unsplit)}
    assert whole.grad is not None
    found = {name: [tensors[name] for tensors, _, _ in ranks] for name in expected}
    differences = [_difference("input gradient", [input_gradient], whole.grad, 0.0)]
    steepest = max(
        (t.abs().max().item() for n, t in expected.items() if _is_gradient(n)), default=0
    )
    for name, tensor in expected.items():
        # The mean over the ranks is what the exchange of gradients makes of them.
        mine = [torch.stack(found[name]).mean(0)] if _is_gradient(name) else found[name]
        floor = _NOISE * steepest if _is_gradient(name) else 0.0
        differences.append(_difference(name, mine, tensor, floor))
    differences.sort(key=lambda d: math.inf if math.isnan(d.error) else d.error, reverse=True)
    return Verification(tuple(shape), grid, tuple(differences), tolerance)


def _prepared(model: nn.Module) -> nn.Module:
    copied = copy.deepcopy(model).double()
    for module in copied.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
    return copied


def _state(model: nn.Module) -> dict[str, Tensor]:
    """What training has made of a model: gradients, and buffers."""
    gradients = {
        f"{_GRADIENT}{name}": parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return gradients | {f"buffer {name}": b.double() for name, b in model.named_buffers()}


def _is_gradient(name: str) -> bool:
    return name.startswith(_GRADIENT)


def _difference(name: str, mine: Iterable[Tensor], expected: Tensor, floor: float) -> Difference:
    scale = max(expected.abs().max().item() if expected.numel() else 0.0, floor) or 1.0
    # torch's maximum of numbers and a NaN is the NaN.
    worst = [(tensor - expected).abs().max() for tensor in mine if tensor.numel()]
    return Difference(name, torch.stack(worst).max().item() / scale if worst else 0.0)
