"""Optimizer state of shared filters, whole in checkpoints: any number of ranks resumes from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hvd_ext.spatial.layers.filters import Filters, filters_of


def keep_state_whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make an optimizer's state_dict() and load_state_dict() use the unsplit model's state.

    Both are then collectives of the ranks that share filters.

    Args:
        model: converted with split_filters, or any other.
        optimizer: optimizer of its parameters; changed in place.
    """
    shared = filters_of(model)

    def change(state: dict[str, Any], changed: Callable[[Filters, Tensor], Tensor]) -> Any:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        found = dict(state["state"])
        for number, held in state["state"].items():
            parameter = parameters[number]
            if (filters := shared.get(parameter)) is not None:
                found[number] = {
                    # Numbers, such as the count of steps, stay unchanged.
                    name: changed(filters, value) if _is_like(value, parameter) else value
                    for name, value in held.items()
                }
        return {**state, "state": found}

    if shared:
        optimizer.register_state_dict_post_hook(
            lambda _, state: change(state, lambda filters, own: filters.whole(own, own.ndim - 1))
        )
        optimizer.register_load_state_dict_pre_hook(
            lambda _, state: change(state, lambda filters, whole: filters.own(whole).clone())
        )


def _is_like(value: Any, parameter: nn.Parameter) -> bool:
    return isinstance(value, Tensor) and value.ndim == parameter.ndim
