"""all_reduce: a node's ranks reduce each a shard, which then goes between the nodes.

A node sends and receives 2 (K-1)/K n bytes on K nodes, as a ring of the nodes does, and as many of
its ranks as every node has share the work (rails). A short message is the leaders' alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.allreduce.algorithms import NATIVE, SHARED_MEMORY
from hvd_ext.allreduce.operations import find_operation
from hvd_ext.allreduce.prepare import prepare
from hvd_ext.dtypes import DTYPES
from hvd_ext.engine.collectives.levels import PIECE_BYTES, RAILS_BYTES
from hvd_ext.shm.layout import shard

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.engine.collectives.levels import Levels


def all_reduce(levels: Levels, array: Array, dtype: str, operation: str, scale: float) -> str:
    """Reduce an array over all ranks, in place.

    Args:
        levels: the group's.
        array: 1-D and contiguous, of the type that stores `dtype`.
        dtype: a key of DTYPES.
        operation: "sum", "min", "max" or "product".
        scale: what every element of a sum is multiplied by.

    Returns:
        The algorithm between the nodes.
    """
    algorithm = NATIVE
    most = PIECE_BYTES // array.itemsize
    for begin in range(0, len(array), most):
        part = array[begin : begin + most]
        algorithm = _reduce_piece(levels, part, dtype, operation, scale)
    return algorithm


def _reduce_piece(levels: Levels, part: Array, dtype: str, operation: str, scale: float) -> str:
    rails = levels.nodes.rails if part.nbytes >= RAILS_BYTES else 1
    is_rail = levels.local_rank < rails
    cut = shard(len(part), rails, levels.local_rank, part.itemsize) if is_rail else (0, 0)
    ticket, place = levels.next()
    exchange = levels.window.plan(
        place, len(part), dtype, scale, local=False, operation=operation, part=cut
    )
    piece = levels.own[place : place + part.nbytes].view(part.dtype)
    piece[:] = part
    levels.reduce(exchange, ticket)
    shard_bytes = -(-part.nbytes // rails)
    algorithm = levels.table.choose(
        *(len(levels.nodes.ranks), 1, "host", shard_bytes, DTYPES[dtype].dtype_class)
    )
    if algorithm == SHARED_MEMORY:
        algorithm = NATIVE
    if is_rail:
        own = piece[slice(*cut)]
        prepare(algorithm, levels.rail, own, find_operation(operation), dtype)()
        levels.window.publish(exchange)
    levels.window.done(ticket)
    levels.finish(ticket)
    part[:] = piece
    return algorithm
