"""all_gather: a rank sends its row to one rank of each other node, whose memory all of it read.

On K nodes of n ranks a node sends (K-1) n rows and receives as many, which no algorithm can
undercut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.engine.collectives.levels import PIECE_BYTES, RAILS_BYTES, Transfers
from hvd_ext.shm.layout import LINE_BYTES

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.engine.collectives.levels import Levels


def all_gather(levels: Levels, rows: Sequence[Array] | Array, own: Array) -> None:
    """Give every rank all ranks' rows.

    Args:
        levels: the group's.
        rows: for each rank uint8, as long as `own`.
        own: uint8, as long on every rank.
    """
    if levels.size * len(own) < RAILS_BYTES:
        _short(levels, rows, own)
        return
    mine = levels.relayed[levels.local_rank]
    relays = [
        levels.nodes.relay(levels.rank, node)
        for node in range(len(levels.nodes.ranks))
        if node != levels.node
    ]
    # Each begins with the next node, so that none is everybody's first.
    start = sum(1 for rank in relays if levels.nodes.of_rank[rank] < levels.node)
    relays = relays[start:] + relays[:start]
    slot = PIECE_BYTES // levels.nodes.most_relayed // LINE_BYTES * LINE_BYTES

    def begin_piece(begin: int) -> tuple[int, int, Transfers]:
        ticket, place = levels.next()
        transfers, part = Transfers(levels.comm), own[begin : begin + slot]
        for index, rank in enumerate(mine):
            memory = levels.own[place + index * slot :][: len(part)]
            if rank == levels.rank:
                memory[:] = part
            else:
                transfers.receive(memory, rank)
        for relay in relays:
            transfers.send(part, relay)
        return ticket, place, transfers

    under_way = begin_piece(0)
    for begin in range(0, len(own), slot):
        ticket, place, transfers = under_way
        transfers.wait()
        levels.meet(ticket)
        if begin + slot < len(own):
            under_way = begin_piece(begin + slot)
        for memory, ranks in zip(levels.memories, levels.relayed, strict=True):
            for index, rank in enumerate(ranks):
                target = rows[rank][begin : begin + slot]
                target[:] = memory[place + index * slot :][: len(target)]


def _short(levels: Levels, rows: Sequence[Array] | Array, own: Array) -> None:
    if isinstance(rows, np.ndarray):
        levels.comm.Allgather(own, rows)
        return
    whole = np.empty((levels.size, len(own)), np.uint8)
    levels.comm.Allgather(own, whole)
    for row, found in zip(rows, whole, strict=True):
        row[:] = found
