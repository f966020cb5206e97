"""The placeholder for `.grad` while the ranks of a node have parts of a gradient's sums.

A rank then has only the sums of its part: a program that read `.grad` would get garbage, and None
would mean a parameter without a gradient. So `.grad` is a tensor without memory. It has the
gradient's shape and dtype, may be overwritten completely, and refuses everything else, also
autograd's accumulation.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import torch

from hvd_ext.errors import UsageError
from hvd_ext.torch.parameters import grad_strides
from hvd_ext.torch.torch_internals import (
    ASKS_TO_SET_DATA,
    READS_DATA,
    ZEROES_SEVERAL,
    tensor_without_memory,
    without_torch_function,
)

# Functions that need only shape, dtype and the like. A conversion to the same type returns its
# input.
_NEEDS_NO_ELEMENT = {"__get__", "dim", "is_complex", "is_floating_point", "numel", "size", "to"}
_NEEDS_NO_ELEMENT |= {"bfloat16", "cpu", "double", "float", "half"}
# Harmless before a gradient is overwritten, as in torch's zero_grad.
_CHANGES_NO_ELEMENT = {"detach", "detach_", "requires_grad_"}
_OVERWRITES = {"copy_", "fill_", "zero_"}


class ShardedGradient(torch.Tensor):
    """The gradient of a parameter of which each rank of the node has a part."""

    _name: str
    _parameter: weakref.ref[torch.nn.Parameter]

    @staticmethod
    def __new__(cls, name: str, parameter: torch.nn.Parameter) -> ShardedGradient:
        """Make the placeholder of a parameter with this name."""
        gradient: Any = tensor_without_memory(cls, parameter, grad_strides(parameter))
        gradient._name = name
        # `.grad` would keep the parameter alive, in a cycle that the garbage collector does not
        # see.
        gradient._parameter = weakref.ref(parameter)
        return cast(ShardedGradient, gradient)

    def __init__(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Do nothing."""

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        first = args[0] if args else None
        if name == ZEROES_SEVERAL:
            for gradient in first or ():
                gradient.zero_()
            return None
        if name == ASKS_TO_SET_DATA:
            return False
        others = [*args[1:], *kwargs.values()]
        if isinstance(first, cls) and not any(isinstance(other, cls) for other in others):
            if name in _CHANGES_NO_ELEMENT or func == READS_DATA:
                return first
            if name in _OVERWRITES:
                return first._overwritten(name, others)
            if name in _NEEDS_NO_ELEMENT:
                with without_torch_function():
                    return func(*args, **kwargs)
        _refuse((*args, *kwargs.values()))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        _refuse((*args, *(kwargs or {}).values()))  # autograd calls this

    def _overwritten(self, name: str, values: Sequence[Any]) -> torch.Tensor:
        """Make the new gradient of the parameter, without data of the old one."""
        parameter = self._parameter()
        if parameter is None or parameter.grad is not self:
            _refuse([self])
        gradient = torch.empty_like(parameter, requires_grad=False)
        getattr(gradient, name)(*values)
        parameter.grad = gradient
        return gradient


def _refuse(arguments: Sequence[Any]) -> NoReturn:
    """Raise the UsageError for the first placeholder in the arguments."""
    found = next((a for a in _flat(arguments) if isinstance(a, ShardedGradient)), None)
    name = "a parameter" if found is None else repr(found._name)
    raise UsageError(
        f"sharded=True: this rank has reduced only its part of the gradient of {name}: call "
        "zero_grad() first; to use the whole, call optimizer.synchronize() before step(), and "
        "step() inside `with optimizer.skip_synchronize():`"
    )


def _flat(arguments: Sequence[Any]) -> list[Any]:
    lists = [a if isinstance(a, list | tuple) else [a] for a in arguments]
    return [item for items in lists for item in items]
