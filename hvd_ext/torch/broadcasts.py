"""Horovod's broadcasts, of what hvd_ext's optimizers keep beside or instead of torch's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import horovod.torch as horovod
import torch
from horovod.torch import functions as horovod_functions

from hvd_ext.errors import UsageError
from hvd_ext.torch import lifecycle
from hvd_ext.torch.own import broadcast_parameters as _broadcast_shared
from hvd_ext.torch.own import refuse_own
from hvd_ext.torch.reducer import Reducer
from hvd_ext.torch.shards import Shards


def _horovods_state(optimizer: Any, root_rank: int, model: torch.nn.Module | None) -> None:
    """Horovod's own, whose tensors may have any strides, such as those of channels_last."""
    before = horovod_functions.broadcast_parameters
    horovod_functions.broadcast_parameters = _broadcast_shared
    try:
        horovod_functions.broadcast_optimizer_state(optimizer, root_rank, model)
    finally:
        horovod_functions.broadcast_parameters = before


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int) -> None:
    """As Horovod's, but ranks keep what is their own.

    Raises:
        UsageError: nodes have different weights, in the middle of a round (`sync=`).
    """
    given = params if isinstance(params, Mapping) else list(params)
    pairs = given.items() if isinstance(given, Mapping) else given
    values = [pair[1] if isinstance(pair, tuple) else pair for pair in pairs]
    tensors = [value for value in values if torch.is_tensor(value)]
    if any(rounds.differ_in(tensors) for rounds in lifecycle.rounds()):
        raise UsageError(
            "broadcast_parameters() of weights that differ between nodes, in the middle of a "
            "round: call optimizer.drain() on all ranks before"
        )
    _broadcast_shared(given, root_rank)


def broadcast_optimizer_state(
    optimizer: Any, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """As Horovod's, which a sharded optimizer's own state_dict() does not need.

    What `drain` found on the root is broadcast too.

    Raises:
        UsageError: nodes have different weights, in the middle of a round, or gradients that
            are one step late are under way; or ranks have filters of their own.
    """
    refuse_own(
        (p for group in optimizer.param_groups for p in group["params"]),
        "broadcast_optimizer_state",
        "have each rank load the state that it saved",
    )
    if isinstance(getattr(optimizer, "_shards", None), Shards):
        state = horovod.broadcast_object(optimizer.state_dict(), root_rank)
        optimizer.load_state_dict(state)
        return
    reducer = getattr(optimizer, "_reducer", None)
    if not (isinstance(reducer, Reducer) and optimizer.keeps_more):
        _horovods_state(optimizer, root_rank, model)
        return
    optimizer.require_drained("broadcast_optimizer_state()")
    drained, optimizer.drained = optimizer.drained, {}
    _horovods_state(optimizer, root_rank, model)
    # By the type of what it is given, ranks would name it differently, and wait for ever.
    optimizer.keep_drained(horovod.broadcast_object(drained, root_rank, name="drained"))
