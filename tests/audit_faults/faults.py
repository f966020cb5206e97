"""What is done to a training, and at which point of a step. Everything is undone when it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

Point = Literal["forward", "update", "sum"]


@dataclass
class Here:
    """A step of one rank, into which a fault is injected.

    Attributes:
        x: the inputs of the model.
        parameter: that is damaged, where the fault damages one.
        undo: ends the fault after the step.
    """

    model: nn.Module
    optimizer: Any
    x: Tensor
    parameter: nn.Parameter | None
    undo: ExitStack = field(default_factory=ExitStack)

    @property
    def damaged(self) -> nn.Parameter:
        """The parameter of a fault that damages one."""
        assert self.parameter is not None
        return self.parameter


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        point: before the forward pass; between backward() and step(); or after the exchange.
        act: does it.
    """

    point: Point
    act: Callable[[Here], None]


def _flip(tensor: Tensor, element: int, bit: int) -> None:
    memory = tensor.detach().numpy().reshape(-1)
    assert np.shares_memory(memory, tensor.detach().numpy())
    memory.view(np.uint32)[element] ^= np.uint32(1 << bit)


def flip_gradient(element: int = 3, bit: int = 20) -> Fault:
    """In a rank's gradient, as backward leaves it."""

    def act(here: Here) -> None:
        def flipped(gradient: Tensor) -> Tensor:
            damaged = gradient.clone().contiguous()
            _flip(damaged, element, bit)
            return damaged

        here.undo.callback(here.damaged.register_hook(flipped).remove)

    return Fault("forward", act)


def flip_before_exchange(element: int = 3, bit: int = 20) -> Fault:
    """In the arena, when the bucket's gradients are complete and not exchanged yet."""

    def act(here: Here) -> None:
        arenas = here.optimizer._reducer._arenas
        audit = arenas.observer

        def observe(slots: Any) -> None:
            audit(slots)
            for slot in slots:
                if slot.parameter is here.parameter:
                    _flip(slot.view, element, bit)

        arenas.observer = observe
        here.undo.callback(setattr, arenas, "observer", audit)

    return Fault("forward", act)


def flip_sum(element: int = 3, bit: int = 20) -> Fault:
    """In the arena, where the sum is."""

    def act(here: Here) -> None:
        assert here.damaged.grad is not None
        _flip(here.damaged.grad, element, bit)

    return Fault("sum", act)


def flip_parameter(point: Point = "forward", element: int = 3, bit: int = 20) -> Fault:
    """In a parameter."""
    return Fault(point, lambda here: _flip(here.damaged, element, bit))


def flip_state(key: str, element: int = 3, bit: int = 20) -> Fault:
    """In the state of the optimizer."""
    return Fault(
        "update", lambda here: _flip(here.optimizer.state[here.damaged][key], element, bit)
    )


def set_option(name: str, value: Any) -> Fault:
    """Another setting of the optimizer."""

    def act(here: Here) -> None:
        for group in here.optimizer.param_groups:
            here.undo.callback(group.__setitem__, name, group[name])
            group[name] = value

    return Fault("update", act)


def swap_samples(i: int, j: int) -> Fault:
    """Two samples of a rank's batch."""

    def act(here: Here) -> None:
        here.x[[i, j]] = here.x[[j, i]]

    return Fault("forward", act)


def repeat_sample(i: int, j: int) -> Fault:
    """One sample in place of another."""

    def act(here: Here) -> None:
        here.x[j] = here.x[i]

    return Fault("forward", act)


def mirror_sample(i: int) -> Fault:
    """Another augmentation of a sample."""

    def act(here: Here) -> None:
        here.x[i] = here.x[i].flip(-1)

    return Fault("forward", act)


def reseed(seed: int) -> Fault:
    """Other random numbers of the model."""

    def act(here: Here) -> None:
        torch.manual_seed(seed)

    return Fault("forward", act)


def hook_output(module: str, factor: float = 1.001) -> Fault:
    """A forward hook that changes a module's output."""

    def act(here: Here) -> None:
        inner = here.model.get_submodule(module)
        hook = inner.register_forward_hook(lambda module, inputs, result: factor * result)
        here.undo.callback(hook.remove)

    return Fault("forward", act)


def hook_backward(module: str, factor: float = 1.001) -> Fault:
    """A hook that changes the gradient that a module passes back."""

    def act(here: Here) -> None:
        inner = here.model.get_submodule(module)
        hook = inner.register_full_backward_hook(
            lambda module, inputs, outputs: tuple(
                None if gradient is None else factor * gradient for gradient in inputs
            )
        )
        here.undo.callback(hook.remove)

    return Fault("forward", act)


def replace_operator(name: str, version: Callable[..., Tensor]) -> Fault:
    """Another version of a function of torch.nn.functional."""

    def act(here: Here) -> None:
        here.undo.callback(setattr, nn.functional, name, getattr(nn.functional, name))
        setattr(nn.functional, name, version)

    return Fault("forward", act)


def linear_in_float64(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As torch's, rounded once."""
    return (x.double() @ weight.double().T + bias.double()).float()


def batch_norm_by_formula(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, *rest: Any
) -> Tensor:
    """As torch's in training, in another order; does not update the averages."""
    centred = x - x.mean((0, 2, 3), keepdim=True)
    scale = centred.square().mean((0, 2, 3), keepdim=True).add(rest[-1]).rsqrt()
    shape = (1, -1, 1, 1)
    return centred * (scale * weight.view(shape)) + bias.view(shape)


def dropout_by_mask(x: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    """As torch's, with random numbers of another kind."""
    return x * (torch.rand_like(x) >= p) / (1 - p) if training else x


def conv2d_in_float64(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    """As torch's, rounded once."""
    return torch.conv2d(x.double(), weight.double(), bias.double(), *rest).float()


def relu_leaky(x: Tensor, inplace: bool = False) -> Tensor:
    """Nearly torch's."""
    return torch.where(x > 0, x, 1e-3 * x)
