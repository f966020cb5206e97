"""reduce_scatter: a node's partial sum of a row is sent to the rank of that row.

On K nodes of n ranks a node sends (K-1)/K of the whole, which no algorithm can undercut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.algorithms.half import narrow, widen
from hvd_ext.allreduce.algorithms.segments import scratch
from hvd_ext.allreduce.operations import find_operation
from hvd_ext.dtypes import DTYPES
from hvd_ext.engine.collectives.all_reduce import all_reduce
from hvd_ext.engine.collectives.levels import PIECE_BYTES, RAILS_BYTES, Transfers

if TYPE_CHECKING:
    from collections.abc import Callable

    from hvd_ext.allreduce.operations import Array
    from hvd_ext.engine.collectives.levels import Levels


def reduce_scatter(
    levels: Levels, out: Array, own: Array, dtype: str, operation: str, scale: float
) -> None:
    """Give every rank its row of the reduction of all ranks' arrays.

    Args:
        levels: the group's levels.
        out: 1-D and contiguous, of the type that stores `dtype`.
        own: `size` times as long as `out`, of the same length on every rank.
        dtype: a key of DTYPES.
        operation: "sum", "min", "max" or "product".
        scale: factor of every element of a sum.
    """
    if own.nbytes < RAILS_BYTES:
        whole = own.copy()
        all_reduce(levels, whole, dtype, operation, scale)
        out[:] = whole.reshape(levels.size, len(out))[levels.rank]
        return
    rows = own.reshape(levels.size, len(out))
    first = sum(map(len, levels.relayed[: levels.local_rank]))
    mine = levels.relayed[levels.local_rank]
    order = [row for relayed in levels.relayed for row in relayed]
    most = min(len(out), PIECE_BYTES // levels.size // out.itemsize)
    # The rank of each node that sends its partial sum of this rank's row.
    sources = [levels.nodes.relay(levels.rank, node) for node in range(len(levels.nodes.ranks))]
    # One piece travels between the nodes while the next one is reduced within them.
    arriving = scratch(2 * len(sources) * most, out.dtype).reshape(2, len(sources), most)

    def begin_piece(begin: int, number: int) -> Callable[[], None]:
        count = min(most, len(out) - begin)
        transfers, parts = Transfers(levels.comm), arriving[number % 2, :, :count]
        ticket, place = levels.next()
        memory = levels.own[place : place + levels.size * count * out.itemsize]
        piece = memory.view(out.dtype).reshape(levels.size, count)
        np.take(rows[:, begin : begin + count], order, axis=0, out=piece)
        exchange = levels.window.plan(
            place,
            piece.size,
            dtype,
            scale,
            local=False,
            operation=operation,
            part=(first * count, (first + len(mine)) * count),
        )
        for part, source in zip(parts, sources, strict=True):
            if source != levels.rank:
                transfers.receive(part, source)
        levels.reduce(exchange, ticket)
        for number_, row in enumerate(mine):
            if row != levels.rank:
                transfers.send(piece[first + number_], row)
        parts[levels.node] = piece[first + mine.index(levels.rank)]

        def finish() -> None:
            transfers.wait()
            _combine(parts, out[begin : begin + count], dtype, operation)

        return finish

    under_way: Callable[[], None] | None = None
    for number, begin in enumerate(range(0, len(out), max(1, most))):
        begun = begin_piece(begin, number)
        if under_way is not None:
            under_way()
        under_way = begun
    if under_way is not None:
        under_way()


def _combine(partial: Array, out: Array, dtype: str, operation: str) -> None:
    """Combine the nodes' parts in the order of the nodes; 16-bit floats are rounded once."""
    combine = find_operation(operation).combine
    is_half = DTYPES[dtype].dtype_class == "half"
    with np.errstate(all="ignore"):
        if not is_half:
            first, *others = partial
            for other in others:
                combine(first, other, out=first)
            out[:] = first
            return
        total = np.empty(len(out), np.float32)
        wide = np.empty(len(out), np.float32)
        widen(partial[0], total)
        for row in partial[1:]:
            widen(row, wide)
            combine(total, wide, out=total)
        narrow(total, out)
