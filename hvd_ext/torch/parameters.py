"""An optimizer's parameters: their names, and the facts that a layout needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from hvd_ext.arena.layout import ParameterSpec
from hvd_ext.tensors import dtype_name
from hvd_ext.torch.own import is_own

NamedParameters = Sequence[tuple[str, torch.nn.Parameter]]


def pair_names(
    optimizer: torch.optim.Optimizer, named: NamedParameters | None
) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the optimizer's parameters with their names, in the order of its groups.

    Raises:
        ValueError: as Horovod does, for names that are missing or not unique.
    """
    parameters = [
        (f"allreduce.noname.{i}.{j}", p)
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
    ]
    if named is None:
        return parameters
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually "
            "produced by model.named_parameters()."
        )
    duplicates = sorted(name for name, n in Counter(name for name, _ in named).items() if n > 1)
    if duplicates:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(duplicates)
        )
    name_of = {id(p): name for name, p in named}
    unnamed = sum(id(p) not in name_of for _, p in parameters)
    if unnamed:
        raise ValueError(
            f"named_parameters was specified, but {unnamed} of the optimizer's parameters are "
            "not in it"
        )
    return [(name_of[id(p)], p) for _, p in parameters]


def trainable(pairs: NamedParameters) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the parameters whose gradients are exchanged."""
    return [(name, p) for name, p in pairs if p.requires_grad and not is_own(p)]


def specify(named_parameters: NamedParameters) -> list[ParameterSpec]:
    """Describe parameters for the layout. A gradient has its parameter's memory layout."""
    return [
        ParameterSpec(name, tuple(p.shape), grad_strides(p), dtype_name(p.dtype))
        for name, p in named_parameters
    ]


def grad_strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of autograd's gradients: the parameter's if it is dense."""
    return torch.empty_like(parameter, device="meta").stride()


def in_memory_order(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements (1-D) in the memory order of the parameter's gradient.

    The tensor has the parameter's shape. The result is a view if the tensor has that memory order,
    otherwise a copy.
    """
    strides = grad_strides(parameter)
    if tensor.stride() != strides:
        tensor = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def placed_as(parameter: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """Return the result of `in_memory_order` in the parameter's shape."""
    return flat.as_strided(parameter.shape, grad_strides(parameter))
