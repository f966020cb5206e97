"""Horovod's broadcasts, for the state that hvd_ext's optimizers add to torch's or replace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hvd_ext.errors import UsageError
from hvd_ext.torch import horovods
from hvd_ext.torch.job import lifecycle
from hvd_ext.torch.optimizer_state import broadcast_into, make_state
from hvd_ext.torch.own import is_own, refuse_own
from hvd_ext.torch.sharded.wrapped import ShardedMixin
from hvd_ext.torch.wrapped import DistributedMixin


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int) -> None:
    """Broadcast like Horovod, but ranks keep the rows of filters that are only theirs.

    Args:
        params: a `state_dict`, or names and tensors.
        root_rank: the rank whose values all others get.

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
    """Broadcast like Horovod, in place; the result of `drain` on the root is also broadcast.

    If the root has no state, all ranks make some by a step with zero gradients, as Horovod does. If
    it has, all ranks get the state of the same parameters, and no weights change.

    Args:
        optimizer: wrapped or not, sharded or not.
        root_rank: the rank whose state all others get.
        model: see Horovod.

    Raises:
        UsageError: nodes have different weights, in the middle of a round, or late gradients are in
            flight (`sync=`); ranks have different filters, or different groups.
        ValueError: the optimizer is LBFGS, as Horovod has it.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    refuse_own(
        (p for group in optimizer.param_groups for p in group["params"]),
        "broadcast_optimizer_state",
        "have each rank load the state that it saved",
    )
    if isinstance(optimizer, ShardedMixin):
        _broadcast_whole_state(optimizer, root_rank)
        return
    if not (isinstance(optimizer, DistributedMixin) and optimizer.keeps_more):
        _broadcast_state(optimizer, root_rank, model)
        return
    optimizer.require_drained("broadcast_optimizer_state()")
    drained, optimizer.drained = optimizer.drained, {}
    _broadcast_state(optimizer, root_rank, model)
    # Names that depend on the type of the argument would differ between ranks, which would then
    # hang.
    optimizer.keep_drained(horovods.broadcast_object(drained, root_rank, name="drained"))


def _broadcast_state(optimizer: Any, root_rank: int, model: torch.nn.Module | None) -> None:
    if not horovods.broadcast_object(bool(optimizer.state), root_rank, name="has_state"):
        optimizer.state.clear()
        make_state(optimizer, model)
    broadcast_into(optimizer.param_groups, optimizer.state, root_rank, _broadcast_shared)


def _broadcast_whole_state(optimizer: ShardedMixin, root_rank: int) -> None:
    whole = optimizer.whole_state()
    if not horovods.broadcast_object(bool(whole), root_rank, name="has_state"):
        optimizer.make_state()
        whole = optimizer.whole_state()
    broadcast_into(optimizer.param_groups, whole, root_rank, _broadcast_shared)
    optimizer.state.clear()
    optimizer.state.update(whole)


def _broadcast_shared(params: Any, root_rank: int) -> None:
    """Broadcast like Horovod, but ranks keep their own rows, and tensors may have any strides."""
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # and the tensor of which each is a copy

    def contiguous(p: Any) -> Any:
        if not torch.is_tensor(p) or p.is_contiguous():
            return p
        copies.append((p.detach().contiguous(), p))
        return copies[-1][0]

    if isinstance(params, dict):
        params = {name: contiguous(p) for name, p in params.items() if not is_own(p)}
    elif isinstance(params, list):
        pairs = [p if isinstance(p, tuple) else (None, p) for p in params]
        params = [(name, contiguous(p)) for name, p in pairs if not is_own(p)]
    horovods.broadcast_parameters(params, root_rank)
    for copy, p in copies:
        p.detach().copy_(copy)
