"""A layer, split against unsplit: output, input gradient, parameter gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hvd_ext.spatial import ProcessGrid, SpatialTensor, scatter
from hvd_ext.spatial.geometry.partition import lengths, shard

Grid = tuple[int, int, int]
Operation = Callable[..., Any]


@dataclass
class Case:
    """A layer, and what it is given.

    Attributes:
        text: how to read it in a failure.
        grid: ranks along depth, height, width.
        shape: of the input.
        parameters: shapes of the parameters.
        operation: (input, *parameters) -> output; torch's functions only.
        exact: equal bit for bit; else to rounding.
        dims: how many of the input's dims are split.
        distinct: no two cells of the input are equal.
    """

    text: str
    grid: Grid
    shape: tuple[int, ...]
    parameters: list[tuple[int, ...]]
    operation: Operation
    exact: bool = True
    distinct: bool = False
    values: list[Tensor] = field(default_factory=list)

    @property
    def dims(self) -> int:
        return len(self.shape) - 2

    @property
    def size(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


def whole_numbers(generator: torch.Generator, shape: Sequence[int], most: int = 3) -> Tensor:
    """Small whole numbers in float64: no order of adding them up rounds."""
    return torch.randint(-most, most + 1, tuple(shape), generator=generator).double()


def prepared(case: Case, seed: int) -> Case:
    """Draw the input and the parameters."""
    generator = torch.Generator().manual_seed(seed)
    case.values = [whole_numbers(generator, s) for s in (case.shape, *case.parameters)]
    if case.distinct:
        count = case.values[0].numel()
        case.values[0] = torch.randperm(count, generator=generator).double().view(case.shape)
    return case


def reference(case: Case, seed: int) -> list[Tensor] | None:
    """Output, its gradient, and those of input and parameters; None if torch refuses."""
    values = [value.clone().requires_grad_() for value in case.values]
    try:
        output = case.operation(*values)
    except (RuntimeError, ValueError):
        return None
    if output.numel() == 0:
        return None
    gradient = whole_numbers(torch.Generator().manual_seed(seed + 1), output.shape)
    found = torch.autograd.grad(output, values, gradient)
    return [output.detach(), gradient, *found]


def check(case: Case, expected: list[Tensor], comm: Any, overlap: bool = True) -> None:
    """Run a case on this rank, and compare."""
    grid = ProcessGrid(*case.grid, comm=comm, overlap=overlap)
    leaf = scatter(case.values[0], grid).local.requires_grad_()
    parameters = [value.clone().requires_grad_() for value in case.values[1:]]
    extents = case.shape[2:]
    output = case.operation(SpatialTensor(leaf, grid, extents), *parameters)
    whole, gradient, input_gradient, *parameter_gradients = expected
    if isinstance(output, SpatialTensor):
        assert output.shape == whole.shape, f"{case.text}: {output.shape} {whole.shape}"
        compare(case, "output", output.local, part(whole, grid, output.extents))
        (output.local * part(gradient, grid, output.extents)).sum().backward()
    else:
        compare(case, "output", output, whole)
        (output * gradient).sum().backward()
    assert leaf.grad is not None, f"{case.text}: no input gradient"
    compare(case, "input gradient", leaf.grad, part(input_gradient, grid, extents))
    for number, (mine, true) in enumerate(zip(parameters, parameter_gradients, strict=True)):
        assert mine.grad is not None, f"{case.text}: no gradient of parameter {number}"
        mean = grid.space.allreduce(mine.grad) / grid.space.size
        compare(case, f"gradient of parameter {number}", mean, true)


def part(whole: Tensor, grid: ProcessGrid, extents: Sequence[int]) -> Tensor:
    """This rank's shard of a whole tensor."""
    dims = len(extents)
    box = shard(extents, grid.shape.parts(dims), grid.coordinates(dims))
    assert len(lengths(box)) == dims
    return whole[(..., *(slice(*interval) for interval in box))]


def compare(case: Case, what: str, got: Tensor, expected: Tensor) -> None:
    assert got.shape == expected.shape, f"{case.text}: {what} {got.shape}, not {expected.shape}"
    same = (
        torch.equal(got, expected)
        if case.exact
        else torch.allclose(got, expected, rtol=1e-11, atol=1e-11, equal_nan=True)
    )
    assert same, f"{case.text}: {what} differs by {(got - expected).abs().max():g}"
