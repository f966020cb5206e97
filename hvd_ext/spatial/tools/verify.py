"""Checks, in one process and without MPI, that a split model equals the unsplit one."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hvd_ext.spatial.convert import convert
from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.exchange.communicator import Communicator
from hvd_ext.spatial.geometry.partition import Box
from hvd_ext.spatial.grid import GridShape, ProcessGrid
from hvd_ext.spatial.layers.filters import whole_gradients
from hvd_ext.spatial.layers.gather import gather, scatter
from hvd_ext.spatial.tensor import SpatialTensor
from hvd_ext.spatial.tools.repeatable import Repeatable, by_thread
from hvd_ext.units import counted

# In fp64 the order of summation leaves some 1e-15 per layer.
TOLERANCE = 1e-10
# The relative change of the input and of the gradient's direction that shows the effect of rounding
# on the unsplit model; the number of such runs; and the multiple of their effect that counts as
# noise, because a split model rounds differently in every layer.
_MOVED, _MOVES, _NOISE = 1e-15, 2, 100.0
# The same for models that cast to a narrower dtype, and so round more.
_CASTS_NOISE = 10.0
_INPUT, _GRADIENT = "input gradient", "gradient of "


@dataclass(frozen=True)
class Difference:
    """The difference of one tensor between the split and the unsplit model.

    Attributes:
        name: "output" (with its place, if there are several), "input gradient", "gradient of X" or
            "buffer X".
        error: largest difference, relative to the largest value. If rounding by itself changes the
            tensor by more than the tolerance, the divisor is larger, so that this noise equals the
            tolerance.
    """

    name: str
    error: float


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Attributes:
        shape: shape of the input.
        grid: grid over which it was split.
        differences: those of all compared tensors, the largest first.
        tolerance: difference up to which tensors count as equal.
        notes: changes of random layers.
    """

    shape: tuple[int, ...]
    grid: GridShape
    differences: tuple[Difference, ...]
    tolerance: float
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the split model equals the unsplit one up to rounding."""
        return all(difference.error <= self.tolerance for difference in self.differences)

    def __str__(self) -> str:
        worst = self.differences[0]
        verdict = "equals" if self.passed else "DIFFERS FROM"
        notes = "".join(f"; {note}" for note in self.notes)
        lines = [
            f"split {self.grid} on {self.shape} {verdict} unsplit: "
            f"{counted(len(self.differences), 'tensor')}"
            f" compared, the worst is {worst.name} by {worst.error:.1e}{notes}"
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
    split_filters: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Verification:
    """Compare a model, split over emulated ranks, with itself unsplit.

    Outputs (a tensor, or dicts, lists and dataclasses of tensors), gradients of the input and
    of all parameters, and buffers (running statistics) are compared in fp64 on random data.
    Noise is the change of the unsplit model's result when the input moves by one part in 10^15,
    or, where the model itself casts to a narrower dtype, by one rounding of that dtype; it is not
    counted. Dropout is off, because its masks differ over space. Other random layers draw the same
    numbers, from torch's generators, Python's `random` and `numpy.random`.

    Args:
        model: not converted; it is copied, and stays unchanged.
        shape: `(N, C, *space)` of the input.
        grid: ranks that share a sample.
        gather_before: see `convert`.
        split_filters: see `convert`.
        tolerance: relative difference up to which a difference counts as rounding.
        seed: seed of the data.

    Returns:
        The relative difference of each tensor, and whether all are within the tolerance.

    Raises:
        UnsupportedError: the model has an operation that cannot be split; names the layer.
    """
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(*shape, generator=generator, dtype=torch.float64)
    notes: set[str] = set()
    roundings: set[float] = set()

    def run(
        x: Any, leaf: Tensor, prepared: nn.Module, step: float = 0.0
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the model's output for an input, and the gradient of the input."""
        with Repeatable(seed) as random:
            outputs = dict(_tensors(prepared(x), "output"))
            learnt = [y for y in outputs.values() if y.requires_grad]
            if learnt:
                # An arbitrary direction: the gradient of one number depends on every output.
                torch.stack(
                    [(y * _direction(y, seed, step)).sum() for y in learnt]
                ).sum().backward()
        notes.update(random.met)
        roundings.add(random.rounding)
        found = {name: y.detach().double() for name, y in outputs.items()}
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        return found | _state(prepared), gradient

    def alone(moved: Tensor, step: float = 0.0) -> dict[str, Tensor]:
        leaf = moved.clone().requires_grad_()
        found, gradient = run(leaf, leaf, _copied(model), step)
        return found | {_INPUT: gradient}

    def noise_of(step: float) -> dict[str, Tensor]:
        noise = {name: torch.zeros(()) for name in expected}
        for _ in range(_MOVES):
            by = torch.randn(*shape, generator=generator, dtype=torch.float64)
            moved = alone(batch * (1 + step * by), step)
            noise = {
                name: torch.maximum(noise[name], _largest(moved[name] - t))
                for name, t in expected.items()
            }
        return noise

    def work(comm: Communicator) -> tuple[dict[str, Tensor], Box, Tensor]:
        process_grid = ProcessGrid(*grid.axes, comm=comm, channels=grid.channels)
        split = convert(
            _copied(model), process_grid, gather_before=gather_before, split_filters=split_filters
        )
        x = scatter(batch, process_grid)
        found, gradient = run(x, x.local.requires_grad_(), split)
        return found, x.box, gradient

    with by_thread():
        expected = alone(batch)
        noise = noise_of(_MOVED)
        ranks = emulator.run(grid.size, work)
    input_gradient = torch.zeros_like(batch)
    for _, box, gradient in ranks:
        cells = (slice(None), slice(None), *(slice(begin, end) for begin, end in box))
        # Takes the mean over the ranks that have the same block.
        input_gradient[cells] += gradient / grid.channels
    found = {name: [tensors[name] for tensors, _, _ in ranks] for name in ranks[0][0]}
    found[_INPUT] = [input_gradient]
    # The exchange of gradients would give their mean over the ranks.
    found |= {n: [torch.stack(t).mean(0)] for n, t in found.items() if n.startswith(_GRADIENT)}

    def compared(noise: dict[str, Tensor]) -> Verification:
        differences = [
            _difference(name, found.get(name), expected.get(name), noise.get(name), tolerance)
            for name in expected | found
        ]
        differences.sort(key=lambda d: math.inf if math.isnan(d.error) else d.error, reverse=True)
        return Verification(tuple(shape), grid, tuple(differences), tolerance, tuple(sorted(notes)))

    result = compared(noise)
    rounding = max(roundings)
    if result.passed or rounding == torch.finfo(torch.float64).eps:
        return result
    # A cast within the model hides so small a change, and rounds values that differ by as little.
    notes.add("noise is that of the narrower dtype that the model casts to")
    with by_thread():
        coarse = noise_of(rounding)
    few = _CASTS_NOISE / _NOISE
    return compared(
        {name: torch.maximum(few * coarse[name], small) for name, small in noise.items()}
    )


def _copied(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Return the tensors in a model's result, whole, with their places."""
    if isinstance(value, SpatialTensor):
        yield name, gather(value)
    elif isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{name}[{number}]")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name), f"{name}.{field.name}")


def _direction(like: Tensor, seed: int, step: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    direction = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    by = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    return direction * (1 + step * by)


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Return the results of a training step in a model: gradients and buffers."""
    gradients = {
        f"{_GRADIENT}{path}{'.' if path else ''}{name}": gradient
        for path, module in model.named_modules()
        for name, gradient in whole_gradients(module).items()
    }
    return gradients | {f"buffer {name}": b.double() for name, b in model.named_buffers()}


def _largest(tensor: Tensor) -> Tensor:
    """Return the maximum of absolute values; torch returns NaN if there is one."""
    return tensor.abs().max() if tensor.numel() else torch.zeros(())


def _difference(
    name: str,
    mine: Sequence[Tensor] | None,
    expected: Tensor | None,
    noise: Tensor | None,
    tolerance: float,
) -> Difference:
    if mine is None or expected is None or noise is None:
        one = next(iter(mine)) if mine else expected
        # A gradient that only one model has must be zero.
        absent = one is not None and name.startswith(_GRADIENT) and not one.any()
        return Difference(name, 0.0 if absent else math.inf)
    if any(tensor.shape != expected.shape for tensor in mine):
        return Difference(name, math.inf)
    scale = (_largest(expected) + _NOISE * noise / tolerance).item() or 1.0
    worst = torch.stack([_largest(tensor - expected) for tensor in mine]).max()
    return Difference(name, worst.item() / scale)
