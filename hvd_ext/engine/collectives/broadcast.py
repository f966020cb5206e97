"""broadcast: the root's node reads it from memory, and each of its rails sends a shard.

A long message passes from node to node, piece by piece (a pipelined chain), so that every node
sends and receives it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.engine.collectives.levels import PIECE_BYTES, RAILS_BYTES, Transfers
from hvd_ext.shm.layout import shard
from hvd_ext.units import KIB

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.engine.collectives.levels import Levels

# A chain of K nodes takes K-2 pieces longer than the message: it pays with this many pieces for
# each of these.
_PIECES_A_NODE = 8
# Shorter pieces cost more than they save, and so does a chain with fewer pieces.
_LEAST_PIECE_BYTES, _LEAST_PIECES = 64 * KIB, 4


def broadcast(levels: Levels, array: Array, root: int) -> None:
    """Copy the root's array to every rank.

    Args:
        levels: the group's levels.
        array: uint8, of the same length on every rank.
        root: a rank of the group.
    """
    if len(array) < RAILS_BYTES or levels.size == 1:
        levels.comm.Bcast(array, root)
        return
    if levels.node == levels.nodes.of_rank[root]:
        _from_root(levels, array, root, levels.nodes.rails)
    else:
        _to_node(levels, array, root, levels.nodes.rails)


def _piece_bytes(levels: Levels, array: Array) -> int:
    if levels.nodes.count == 2:
        return PIECE_BYTES
    wanted = len(array) // (_PIECES_A_NODE * levels.nodes.count)
    return min(max(wanted, _LEAST_PIECE_BYTES), PIECE_BYTES)


def _by_chain(levels: Levels, array: Array) -> bool:
    return levels.nodes.count == 2 or len(array) >= _LEAST_PIECES * _LEAST_PIECE_BYTES


def _from_root(levels: Levels, array: Array, root: int, rails: int) -> None:
    holder = levels.memories[levels.nodes.local_rank(root)]
    leaving, piece_bytes = Transfers(levels.comm), _piece_bytes(levels, array)
    for begin in range(0, len(array), piece_bytes):
        part = array[begin : begin + piece_bytes]
        ticket, place = levels.next()
        memory = holder[place : place + len(part)]
        if levels.rank == root:
            memory[:] = part
        # Once all ranks have met, the root overwrites the place of the previous piece.
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
    piece_bytes = _piece_bytes(levels, array)

    def begin_piece(begin: int) -> tuple[int, int, Array]:
        part = array[begin : begin + piece_bytes]
        ticket, place = levels.next()
        piece = levels.own[place : place + len(part)][_cut(part, rails, levels.local_rank)]
        if is_rail and by_chain:
            arriving.receive(piece, _neighbor(levels, -1))
        return ticket, place, piece

    under_way = begin_piece(0) if len(array) else None
    for begin in range(0, len(array), piece_bytes):
        assert under_way is not None
        (ticket, place, piece), part = under_way, array[begin : begin + piece_bytes]
        if is_rail and by_chain:
            arriving.wait()
            # The piece that was sent before is in the place of the next piece.
            leaving.wait()
            if not is_last:
                leaving.send(piece, _neighbor(levels, 1))
        elif is_rail:
            levels.rail.Bcast(piece, _place_in_rail(levels, root))
        levels.meet(ticket)
        if begin + piece_bytes < len(array):
            under_way = begin_piece(begin + piece_bytes)
        for local_rank, memory in enumerate(levels.memories[:rails]):
            cut = _cut(part, rails, local_rank)
            part[cut] = memory[place : place + len(part)][cut]
    leaving.wait()


def _cut(part: Array, rails: int, local_rank: int) -> slice:
    """Return the bytes of a piece that a rail sends."""
    return slice(*shard(len(part), rails, local_rank, 1)) if local_rank < rails else slice(0)


def _neighbor(levels: Levels, distance: int) -> int:
    ranks = levels.nodes.ranks
    return ranks[(levels.node + distance) % len(ranks)][levels.local_rank]


def _place_in_rail(levels: Levels, root: int) -> int:
    """Return the number, in this rank's rail, of the rank on the root's node."""
    rail, of_rank = levels.nodes.rail(levels.local_rank), levels.nodes.of_rank
    return next(place for place, rank in enumerate(rail) if of_rank[rank] == of_rank[root])
