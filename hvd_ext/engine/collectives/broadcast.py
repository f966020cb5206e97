"""broadcast: the root's node reads it from memory, and each of its rails sends a shard.

A long message passes from node to node, a piece behind the other (a pipelined chain), so that every
node sends and receives it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.engine.collectives.levels import PIECE_BYTES, RAILS_BYTES, Transfers
from hvd_ext.shm.layout import shard

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.engine.collectives.levels import Levels

# A chain of K nodes takes K-2 pieces longer than the message: with so many it is worth it.
_PIECES_A_NODE = 2


def broadcast(levels: Levels, array: Array, root: int) -> None:
    """Give every rank what the root has.

    Args:
        levels: the group's.
        array: uint8, as long on every rank.
        root: a rank of the group.
    """
    if len(array) < RAILS_BYTES or levels.size == 1:
        levels.comm.Bcast(array, root)
        return
    nodes, rails = levels.nodes, levels.nodes.rails
    if levels.node == nodes.of_rank[root]:
        _from_root(levels, array, root, rails)
    else:
        _to_node(levels, array, root, rails)


def _by_chain(levels: Levels, array: Array) -> bool:
    nodes = len(levels.nodes.ranks)
    return nodes == 2 or len(array) >= _PIECES_A_NODE * nodes * PIECE_BYTES


def _from_root(levels: Levels, array: Array, root: int, rails: int) -> None:
    holder = levels.memories[levels.nodes.local_rank(root)]
    leaving = Transfers(levels.comm)
    for begin in range(0, len(array), PIECE_BYTES):
        part = array[begin : begin + PIECE_BYTES]
        ticket, place = levels.next()
        memory = holder[place : place + len(part)]
        if levels.rank == root:
            memory[:] = part
        # Once all have met, the root writes where the piece before this one lies.
        leaving.wait()
        levels.meet(ticket)
        if levels.local_rank < rails:
            piece = memory[_cut(part, rails, levels.local_rank)]
            if _by_chain(levels, array):
                leaving.send(piece, _neighbor(levels, 1))
            else:
                levels.rail.Bcast(piece, _place_in_rail(levels, root))
        if levels.rank != root:
            part[:] = memory
    leaving.wait()


def _to_node(levels: Levels, array: Array, root: int, rails: int) -> None:
    is_rail, by_chain = levels.local_rank < rails, _by_chain(levels, array)
    is_last = (levels.node + 1) % len(levels.nodes.ranks) == levels.nodes.of_rank[root]
    arriving, leaving = Transfers(levels.comm), Transfers(levels.comm)

    def begin_piece(begin: int) -> tuple[int, int, Array]:
        part = array[begin : begin + PIECE_BYTES]
        ticket, place = levels.next()
        piece = levels.own[place : place + len(part)][_cut(part, rails, levels.local_rank)]
        if is_rail and by_chain:
            arriving.receive(piece, _neighbor(levels, -1))
        return ticket, place, piece

    under_way = begin_piece(0) if len(array) else None
    for begin in range(0, len(array), PIECE_BYTES):
        assert under_way is not None
        (ticket, place, piece), part = under_way, array[begin : begin + PIECE_BYTES]
        if is_rail and by_chain:
            arriving.wait()
            # What left before lies where the next piece goes.
            leaving.wait()
            if not is_last:
                leaving.send(piece, _neighbor(levels, 1))
        elif is_rail:
            levels.rail.Bcast(piece, _place_in_rail(levels, root))
        levels.meet(ticket)
        if begin + PIECE_BYTES < len(array):
            under_way = begin_piece(begin + PIECE_BYTES)
        for local_rank, memory in enumerate(levels.memories[:rails]):
            cut = _cut(part, rails, local_rank)
            part[cut] = memory[place : place + len(part)][cut]
    leaving.wait()


def _cut(part: Array, rails: int, local_rank: int) -> slice:
    """The bytes of a piece that a rail takes."""
    return slice(*shard(len(part), rails, local_rank, 1)) if local_rank < rails else slice(0)


def _neighbor(levels: Levels, distance: int) -> int:
    ranks = levels.nodes.ranks
    return ranks[(levels.node + distance) % len(ranks)][levels.local_rank]


def _place_in_rail(levels: Levels, root: int) -> int:
    """The rank, in this rank's rail, of the one on the root's node."""
    rail, of_rank = levels.nodes.rail(levels.local_rank), levels.nodes.of_rank
    return next(place for place, rank in enumerate(rail) if of_rank[rank] == of_rank[root])
