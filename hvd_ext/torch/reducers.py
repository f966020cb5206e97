"""The reducer that serves a request, and the rounds that exchange weights, if requested."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_ext.arena.host import HostArena
from hvd_ext.arena.sharded import ShardedArena
from hvd_ext.compression.formats import AUTO
from hvd_ext.schedules import EVERY_STEP
from hvd_ext.shm.regions import WindowError
from hvd_ext.torch.job import lifecycle
from hvd_ext.torch.job.background import lower_thread_priority
from hvd_ext.torch.parameters import NamedParameters, trainable
from hvd_ext.torch.reduction.arena_factory import ArenaFactory
from hvd_ext.torch.reduction.protocol import Reduces
from hvd_ext.torch.reduction.reducer import Reducer
from hvd_ext.torch.reduction.sparse import MadeDense, NoSparse, SparseExchange
from hvd_ext.torch.reproducible.reducer import ReproducibleReducer, ReproducibleShardedReducer
from hvd_ext.torch.request import Request
from hvd_ext.torch.sharded.reducer import ShardedReducer
from hvd_ext.torch.sharded.shards import Shards
from hvd_ext.torch.sync.late_reducer import LateReducer
from hvd_ext.torch.sync.rounds import Rounds


@dataclass(frozen=True)
class Made:
    """The reducer of an optimizer, and the rounds in which nodes exchange weights.

    Attributes:
        reducer: reducer of its gradients; None on one rank.
        rounds: rounds of its weights; None if only gradients are exchanged.
    """

    reducer: Reduces | None = None
    rounds: Rounds | None = None


def make(request: Request, pairs: NamedParameters, shards: Shards | None) -> Made | str:
    """Make the parts that serve a request; collective.

    Args:
        request: the checked request.
        pairs: names and parameters of the optimizer.
        shards: this rank's shards of the update, if the ranks of a node share it.

    Returns:
        The parts, or why the request cannot be served; the same on every rank.
    """
    device = pairs[0][1].device if pairs else torch.device("cpu")
    if device.type != "cpu" and request.format == AUTO:
        return f"compression={AUTO!r} of parameters on {device}"
    if device.type != "cpu" and (shards or request.slots or request.schedule != EVERY_STEP):
        return f"parameters are on {device}"
    try:
        made = _make(request, pairs, device, shards)
    except WindowError as error:
        return str(error)
    assert made.reducer is not None
    made.reducer.frozen.add(pairs)
    lifecycle.add(made.reducer, made.rounds)
    lower_thread_priority()
    return made


def _make(
    request: Request, pairs: NamedParameters, device: torch.device, shards: Shards | None
) -> Made:
    on_host = ShardedArena if shards else HostArena
    topology = lifecycle.topology()
    factory = ArenaFactory(request, topology, lifecycle.begun_steps, device, on_host)
    named, passes = trainable(pairs), request.passes

    def sparse(refused_with: str) -> SparseExchange:
        return MadeDense() if request.sparse_as_dense else NoSparse(refused_with)

    if shards:
        of_shards = ReproducibleShardedReducer if request.slots else ShardedReducer
        return Made(of_shards(named, passes, factory, sparse("sharded=True"), shards))
    if request.slots:
        exchange = sparse(f"reproducible={request.slots}")
        return Made(ReproducibleReducer(named, passes, factory, exchange))
    if request.schedule == EVERY_STEP:
        exchange = MadeDense() if request.sparse_as_dense else SparseExchange(request.op)
        return Made(Reducer(named, passes, factory, exchange))
    kind = LateReducer if factory.is_late else Reducer
    reducer = kind(named, passes, factory, sparse(f"sync={str(request.schedule)!r}"))
    rounds = factory.rounds(named)
    reducer.frozen.can_thaw = rounds is None and not factory.is_late
    return Made(reducer, rounds)
