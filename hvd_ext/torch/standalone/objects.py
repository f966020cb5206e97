"""Python objects between ranks, and what is broadcast when training starts: weights and state.

Objects are pickled, so that both sides must be able to import their classes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hvd_ext.allreduce.operations import Array
from hvd_ext.torch.standalone import ranks, transfers
from hvd_ext.torch.standalone.collectives import broadcast_async_
from hvd_ext.torch.standalone.coordinator import Request
from hvd_ext.torch.standalone.handles import ask, next_name, require_all_ranks, synchronize
from hvd_ext.torch.standalone.ranks import global_process_set

# The module of wrapped optimizers' classes.
WRAPPED_MODULE = "hvd_ext.torch.optimizer"


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """Give every rank the root's object.

    Raises:
        HorovodInternalError: on every rank, where the root's cannot be pickled.
    """
    require_all_ranks(process_set)
    world = ranks.job().topology.world
    is_root = world.rank == root_rank
    sent, problem = _pickle(obj) if is_root else (np.empty(0, np.uint8), "")

    def run(own: Sequence[Any]) -> Array:
        array = sent if is_root else np.empty(own[root_rank], np.uint8)
        transfers.broadcast(world, array, root_rank)
        return array

    name = name or next_name("broadcast_object")
    facts = {"root_rank": root_rank}
    array = synchronize(ask(Request(name, "broadcast_object", facts, len(sent), problem), run))
    return obj if is_root else pickle.loads(array)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The objects of all ranks, in rank order.

    Raises:
        HorovodInternalError: on every rank, where one rank's cannot be pickled.
    """
    world = ranks.job().topology.world
    sent, problem = _pickle(obj)

    def run(own: Sequence[Any]) -> list[Array]:
        arrays = [np.empty(count, np.uint8) for count in own]
        transfers.exchange(world, [sent] * world.size, arrays)
        return arrays

    name = name or next_name("allgather_object")
    request = Request(name, "allgather_object", own=len(sent), problem=problem)
    return [pickle.loads(array) for array in synchronize(ask(request, run))]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give every rank the root's tensors, in place.

    Args:
        params: a dict, or a list of tensors or of names and tensors.
        root_rank: the rank whose tensors all others get.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, list):
        pairs = [p if isinstance(p, tuple) else (None, p) for p in params]
    else:
        raise ValueError(f"params of type {type(params).__name__}: give a dict or a list")
    for handle in [broadcast_async_(tensor, root_rank, name) for name, tensor in pairs]:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give every rank the root's optimizer state and options; see `broadcast_state`."""
    broadcast_state(optimizer, root_rank, model, broadcast_parameters)


def broadcast_state(
    optimizer: Any,
    root_rank: int,
    model: torch.nn.Module | None,
    broadcast_tensors: Callable[[list[tuple[str, Any]], int], None],
) -> None:
    """Give every rank the root's optimizer state and options.

    An optimizer without state takes a step with zero gradients first, as Horovod has it.

    Args:
        optimizer: wrapped or not.
        root_rank: the rank whose state all others get.
        model: has no effect: the optimizer's class says whether gradients are sparse.
        broadcast_tensors: gives every rank the root's tensors, in place.
    """
    del model
    state = optimizer.state_dict()
    if not state["state"]:
        _make_state(optimizer)
        state = optimizer.state_dict()
    tensors: list[torch.Tensor] = []
    frame = broadcast_object(_take_out(state, tensors), root_rank)
    if ranks.rank() != root_rank:
        tensors = []
        state = _put_back(frame, tensors)
    pairs = [(f"optimizer_state.{i}", tensor) for i, tensor in enumerate(tensors)]
    broadcast_tensors(pairs, root_rank)
    if ranks.rank() != root_rank:
        optimizer.load_state_dict(state)


def _make_state(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.requires_grad:
                zeros = torch.zeros_like(p)
                sparse = isinstance(optimizer, torch.optim.SparseAdam)
                p.grad = zeros.to_sparse() if sparse else zeros
    wrapped = type(optimizer).__module__ == WRAPPED_MODULE
    # The base of a wrapped optimizer's class has a step that exchanges nothing.
    plain: Any = super(type(optimizer), optimizer) if wrapped else optimizer
    plain.step()


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Stands where a tensor was."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _take_out(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A copy of nested dicts and sequences without their tensors, which go into the list."""
    if torch.is_tensor(value):
        tensors.append(value)
        return _Tensor(tuple(value.shape), value.dtype)
    return _map(value, lambda inner: _take_out(inner, tensors))


def _put_back(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The reverse, with tensors that are to be filled, which go into the list."""
    if isinstance(value, _Tensor):
        tensors.append(torch.zeros(value.shape, dtype=value.dtype))
        return tensors[-1]
    return _map(value, lambda inner: _put_back(inner, tensors))


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: change(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(change(inner) for inner in value)
    return value


def _pickle(obj: Any) -> tuple[Array, str]:
    """An object as bytes, and why it cannot be."""
    try:
        return np.frombuffer(bytearray(pickle.dumps(obj)), np.uint8), ""
    except Exception as error:  # reported to all ranks, which would wait for this one
        kind = type(obj).__name__
        return np.empty(0, np.uint8), f"an object of type {kind} cannot be pickled: {error}"
