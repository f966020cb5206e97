"""A test whether an optimizer updates each element of a parameter separately.

Only then may each rank update a part of a parameter. The optimizer takes a few steps on a small
matrix, and on its two halves; the results must be bit-identical. They are for SGD, Adam and most
others, also for users' own optimizers of that kind; not for those that use a parameter as a whole,
such as LARS, LAMB, Muon, Adafactor or LBFGS.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from hvd_ext.errors import UsageError
from hvd_ext.torch.torch_internals import drop_step_hooks, unhooked_step

_SHAPE = (6, 32)
_CUT = 64  # elements, whole cache lines
_STEPS = 3


def on_other_parameters(
    optimizer: torch.optim.Optimizer, make: Any, groups: Sequence[dict[str, Any]]
) -> torch.optim.Optimizer:
    """Make an optimizer with the same attributes for other parameters, without state.

    Args:
        optimizer: the original, whose hooks are not copied.
        make: its class, or a base of it.
        groups: param_groups of the new optimizer.
    """
    # Not by the constructor, whose arguments are unknown.
    other: torch.optim.Optimizer = make.__new__(make)
    other.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    other.state = defaultdict(dict)
    other.param_groups = list(groups)
    drop_step_hooks(other)
    return other


class Tried(NamedTuple):
    """The result of the test of an optimizer.

    Attributes:
        state_per_element: names of the state that has a value for each element of a parameter.
        changes_gradients: whether its step writes to `.grad`.
    """

    state_per_element: frozenset[str]
    changes_gradients: bool


def try_elementwise(optimizer: torch.optim.Optimizer, make: Any) -> Tried:
    """Try an optimizer on parts of a parameter.

    Args:
        optimizer: the user's optimizer, with its parameter groups.
        make: its class, without what DistributedOptimizer adds.

    Raises:
        UsageError: an element's update depends on more than the element.
    """
    name = make.__name__
    found: set[str] = set()
    changes_gradients = False
    for group in optimizer.param_groups:
        # At the learning rate of a warm-up's first step, nothing would change.
        options = {"lr": 0.1} if group.get("lr") == 0 else {}
        dtype = next((p.dtype for p in group["params"]), torch.float32)
        whole, halves = _values(0, dtype)
        try:
            after_whole, changed = _run(optimizer, make, group | options, [whole])
            after_halves, _ = _run(optimizer, make, group | options, halves)
        except Exception as error:  # any error of an optimizer that does not support this
            reason = str(error).partition("\n")[0]
            raise UsageError(
                f"sharded=True: {name} cannot update a part of a parameter ({reason}); leave "
                "sharded out"
            ) from error
        changes_gradients = changes_gradients or changed
        same = torch.equal(whole.flatten(), torch.cat(halves))
        for key, value in after_whole[0].items():
            of_halves = [state[key] for state in after_halves if key in state]
            if len(of_halves) < len(halves):
                same = False
            elif isinstance(value, torch.Tensor) and value.shape == whole.shape:
                same = same and torch.equal(value.flatten(), torch.cat(of_halves))
                found.add(key)
            elif isinstance(value, torch.Tensor) and value.numel() > 1:
                same = False
        if not same:
            raise UsageError(
                f"sharded=True: {name} updates an element by more than the element's own "
                "gradient and state, so a parameter cannot be shared by ranks; leave sharded out"
            )
    return Tried(frozenset(found), changes_gradients)


def _run(
    optimizer: torch.optim.Optimizer,
    make: Any,
    group: dict[str, Any],
    parameters: list[torch.Tensor],
) -> tuple[list[dict[str, Any]], bool]:
    """Return each parameter's state after some steps with the options of a group.

    Also return whether a step has changed a gradient.
    """
    tried = on_other_parameters(optimizer, make, [{**group, "params": parameters}])
    # Some have state before the first step.
    states = vars(optimizer)["state"]  # a sharded optimizer's `state` refuses to be read
    held = max(filter(states.get, group["params"]), key=torch.numel, default=None)
    if held is not None:
        for parameter in parameters:
            tried.state[parameter] = {
                key: _in_shape(value, held, parameter) for key, value in states[held].items()
            }
    changes_gradients = False
    for number in range(1, _STEPS + 1):
        whole, halves = _values(number, parameters[0].dtype)
        grads = [whole] if len(parameters) == 1 else halves
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad.clone()
        unhooked_step(make)(tried)
        changes_gradients = changes_gradients or not all(
            parameter.grad is not None and torch.equal(parameter.grad, grad)
            for parameter, grad in zip(parameters, grads, strict=True)
        )
    if tried.state.keys() - set(parameters):
        raise ValueError("it keeps state that is no parameter's")
    return [tried.state[parameter] for parameter in parameters], changes_gradients


def _in_shape(value: Any, held: torch.Tensor, parameter: torch.Tensor) -> Any:
    if isinstance(value, torch.Tensor) and value.shape == held.shape:
        return torch.full_like(parameter, value.flatten()[0].item(), dtype=value.dtype)
    return copy.deepcopy(value)


def _values(seed: int, dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return a matrix of random numbers, and copies of its two parts."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(_SHAPE, generator=generator).to(dtype)
    flat = whole.flatten()
    return whole, [flat[:_CUT].clone(), flat[_CUT:].clone()]
