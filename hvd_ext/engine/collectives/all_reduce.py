"""all_reduce: each of a node's ranks reduces a shard, which is then reduced between the nodes.

A node sends and receives 2 (K-1)/K n bytes on K nodes, as a ring of the nodes does. As many of its
ranks as the smallest node has divide the work (rails). While a piece of a long message travels
between the nodes, the next one is reduced within.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hvd_ext.allreduce.choice import Group, choose
from hvd_ext.allreduce.operations import find_operation
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.dtypes import DTYPES
from hvd_ext.engine.collectives.levels import PIECE_BYTES, RAILS_BYTES
from hvd_ext.shm.layout import shard

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.engine.collectives.levels import Levels

_PLACES = 2  # of Levels: the most pieces in flight


def all_reduce(levels: Levels, array: Array, dtype: str, operation: str, scale: float) -> str:
    """Reduce an array over all ranks, in place.

    Args:
        levels: the group's.
        array: 1-D and contiguous, of the type that stores `dtype`.
        dtype: a key of DTYPES.
        operation: "sum", "min", "max" or "product".
        scale: 1, or for an average the sum's factor, one over the number of ranks.

    Returns:
        The algorithm between the nodes.
    """
    if array.nbytes < RAILS_BYTES or len(levels.nodes.ranks) == levels.size:
        return _flat(levels, array, dtype, operation, scale)
    most = PIECE_BYTES // array.itemsize
    shard_bytes = min(array.nbytes, PIECE_BYTES) // levels.nodes.rails
    between = Group.between(len(levels.nodes.ranks))
    algorithm = choose(levels.table, between, shard_bytes, DTYPES[dtype].dtype_class)
    reduce_piece = partial(_reduce_piece, levels, algorithm, dtype, operation, scale)
    under_way: deque[Callable[[], None]] = deque()
    for begin in range(0, len(array), most):
        if len(under_way) == _PLACES:
            under_way.popleft()()
        under_way.append(reduce_piece(array[begin : begin + most], len(array) > most))
    for finish in under_way:
        finish()
    return algorithm


def _reduce_piece(
    levels: Levels,
    algorithm: str,
    dtype: str,
    operation: str,
    scale: float,
    part: Array,
    in_background: bool,
) -> Callable[[], None]:
    """Reduce a piece within the node and begin the rest; the returned function finishes it."""
    rails, rail = levels.nodes.rails, levels.local_rank
    cut = shard(len(part), rails, rail, part.itemsize) if rail < rails else (0, 0)
    ticket, place = levels.next()
    exchange = levels.window.plan(
        place, len(part), dtype, scale, local=False, operation=operation, part=cut
    )
    piece = levels.own[place : place + part.nbytes].view(part.dtype)
    piece[:] = part
    levels.reduce(exchange, ticket)

    def between_nodes() -> None:
        prepare(algorithm, levels.rail, piece[slice(*cut)], find_operation(operation), dtype)()
        levels.window.publish(exchange)
        levels.window.done(ticket)

    wait: Callable[[], None] = partial(levels.window.done, ticket)
    if rail < rails:
        wait = levels.thread.submit(between_nodes).result if in_background else between_nodes

    def finish() -> None:
        wait()
        levels.finish(ticket)
        part[:] = piece

    return finish


def _flat(levels: Levels, array: Array, dtype: str, operation: str, scale: float) -> str:
    """Reduce by messages of all ranks: short ones, or if no two ranks share memory."""
    group = Group(len(levels.nodes.ranks), max(map(len, levels.nodes.ranks)))
    algorithm = choose(levels.table, group, array.nbytes, DTYPES[dtype].dtype_class)
    # An average, which `prepare` computes before it rounds.
    name = operation if scale == 1.0 else "average"
    prepare(algorithm, levels.comm, array, find_operation(name), dtype)()
    return algorithm
