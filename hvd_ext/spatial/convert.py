"""Make an ordinary model take samples that are split over ranks.

Its layers are not replaced, because torch's own functions accept partitioned tensors. Only hooks
are added, so the model, its parameters and its state_dict stay unchanged.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from hvd_ext.errors import UsageError
from hvd_ext.spatial.grid import ProcessGrid
from hvd_ext.spatial.layers.filters import share_filters
from hvd_ext.spatial.layers.gather import gather, scatter
from hvd_ext.spatial.tensor import SpatialTensor
from hvd_ext.spatial.torch_internals import has_backward_hooks
from hvd_ext.spatial.unsupported import UnsupportedError, layer

_MARK = "_hvd_ext_spatial"


def convert(
    model: nn.Module,
    grid: ProcessGrid,
    *,
    gather_before: Sequence[str] = (),
    split_filters: Sequence[str] = (),
    allow_gather: bool = True,
) -> nn.Module:
    """Make `model` work on samples that the ranks of `grid` share; it is changed in place.

    SpatialTensors as inputs are used directly. A whole tensor `(N, C, *space)`, the same
    on all ranks of a sample, is scattered first. A layer whose output has no spatial dims (flatten,
    global pooling) returns an ordinary tensor, the same on all ranks.

    Args:
        model: any module. Parameters, buffers and state_dict keys stay as they are.
        grid: the ranks.
        gather_before: names of submodules; from these on, every rank works on the whole. `plan`
            says where that is faster.
        split_filters: names of linear layers and convolutions, or of modules that contain some,
            whose filters the ranks share: each rank has only its rows of the weights. This call is
            then a collective, and so is state_dict(), which gathers the rows.
        allow_gather: let every rank do operations that merge or cut split dims (flatten, view) on
            the whole, with a line that says where; otherwise they are refused.

    Returns:
        `model`.

    Raises:
        UsageError: it is already converted, has no such submodule, or one in split_filters
            holds no layer whose filters can be shared.
    """
    if getattr(model, _MARK, False):
        raise UsageError("the model is already converted: build a new one for another grid")
    modules = dict(model.named_modules())
    for name in gather_before:
        if name not in modules or not name:
            raise UsageError(
                f"unknown submodule {name!r} in gather_before: the model has "
                + ", ".join(child for child, _ in model.named_children())
            )
    share_filters(model, grid, split_filters)
    for name, module in modules.items():
        if name in gather_before:
            module.register_forward_pre_hook(_gather_arguments, with_kwargs=True)
        layer_of = functools.partial(
            layer, name or type(module).__name__, is_submodule=bool(name), allow_gather=allow_gather
        )
        _name_refusals(module, layer_of)

    def scatter_arguments(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def split(value: Any) -> Any:
            ordinary = isinstance(value, Tensor) and not isinstance(value, SpatialTensor)
            return scatter(value, grid) if ordinary and value.dim() > 2 else value

        found = tuple(map(split, args))
        _check_hooks(module, found)
        return found, {key: split(value) for key, value in kwargs.items()}

    model.register_forward_pre_hook(scatter_arguments, with_kwargs=True)
    # An attribute that is not part of state_dict or of the parameters.
    object.__setattr__(model, _MARK, True)
    return model


def _name_refusals(module: nn.Module, layer_of: Callable[[], AbstractContextManager[None]]) -> None:
    """Make refusals inside the module name the module."""
    entered: list[AbstractContextManager[None]] = []

    def enter(module: nn.Module, args: Any) -> None:
        entered.append(layer_of())
        entered[-1].__enter__()
        _check_hooks(module, args)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        entered.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(enter)
    # Also after an error, or refusals of the next model would have this name.
    module.register_forward_hook(leave, always_call=True)


def _check_hooks(module: nn.Module, args: tuple[Any, ...]) -> None:
    hooked = has_backward_hooks(module)
    if hooked and any(isinstance(value, SpatialTensor) for value in args):
        raise UnsupportedError(
            "a backward hook of a module, which torch calls for ordinary tensors alone: use hooks "
            "of parameters (register_post_accumulate_grad_hook) or of x.local"
        )


def _gather_arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    seen: set[int] = set()
    whole = functools.partial(_whole, seen=seen)
    return tuple(map(whole, args)), {key: whole(value) for key, value in kwargs.items()}


def _whole(value: Any, seen: set[int]) -> Any:
    """Replace split tensors in `value` by whole ones.

    Lists, dicts and dataclasses are changed in place, so they stay the caller's objects: the module
    may write into them, for example into a cache.
    """
    if isinstance(value, SpatialTensor):
        return gather(value)
    if isinstance(value, tuple):
        items = [_whole(item, seen) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        # Named tuples are made by _make.
        return getattr(type(value), "_make", type(value))(items)
    if id(value) in seen:
        return value
    if isinstance(value, list | dict):
        seen.add(id(value))
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            if (new := _whole(item, seen)) is not item:
                value[key] = new
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        seen.add(id(value))
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if (new := _whole(item, seen)) is not item:
                # Also in frozen dataclasses.
                object.__setattr__(value, field.name, new)
    return value
