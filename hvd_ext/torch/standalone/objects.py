"""Exchanges of Python objects, and the broadcast of weights when training starts.

Objects are pickled, so that both sides must be able to import their classes.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
        HorovodInternalError: on every rank, if the root's object cannot be pickled.
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
    """Return the objects of all ranks, in rank order.

    Raises:
        HorovodInternalError: on every rank, if one rank's object cannot be pickled.
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


def _pickle(obj: Any) -> tuple[Array, str]:
    """Return an object as bytes, and why it cannot be pickled."""
    try:
        return np.frombuffer(bytearray(pickle.dumps(obj)), np.uint8), ""
    except Exception as error:  # reported to all ranks, which would wait for this one
        kind = type(obj).__name__
        return np.empty(0, np.uint8), f"an object of type {kind} cannot be pickled: {error}"
