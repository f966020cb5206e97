"""all_gather: rows travel from node to node around a ring; all ranks of a node read them there.

On K nodes of n ranks a node sends (K-1) n rows and receives as many, which no algorithm can
undercut. In a ring every node has one sender at a time: if all nodes sent to one at once, packets
would queue for its link, and be dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.algorithms.segments import TAG
from hvd_ext.allreduce.algorithms.segments import wait as finish
from hvd_ext.engine.collectives.levels import PIECE_BYTES, RAILS_BYTES
from hvd_ext.shm.layout import LINE_BYTES
from hvd_ext.units import KIB

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array
    from hvd_ext.engine.collectives.levels import Levels

# A node passes a row on segment by segment; this many segments are in flight.
_SEGMENT_BYTES, _UNDER_WAY = 64 * KIB, 4


def all_gather(levels: Levels, rows: Sequence[Array] | Array, own: Array) -> None:
    """Give every rank all ranks' rows.

    Args:
        levels: the group's levels.
        rows: for each rank uint8, as long as `own`.
        own: uint8, of the same length on every rank.
    """
    if levels.size * len(own) < RAILS_BYTES:
        _short(levels, rows, own)
        return
    mine = levels.relayed[levels.local_rank]
    slot = PIECE_BYTES // levels.nodes.most_relayed // LINE_BYTES * LINE_BYTES

    def begin_piece(begin: int) -> tuple[int, int, Callable[[], object]]:
        ticket, place = levels.next()
        part = own[begin : begin + slot]
        passed = []
        for index, rank in enumerate(mine):
            memory = levels.own[place + index * slot :][: len(part)]
            if rank == levels.rank:
                memory[:] = part
            passed.append(_Row.of(levels, rank, memory))
        pass_around = partial(_pass_around, levels.comm, levels.nodes.count, passed)
        # Meanwhile this thread copies the previous piece.
        return ticket, place, levels.thread.submit(pass_around).result if begin else pass_around

    under_way = begin_piece(0)
    for begin in range(0, len(own), slot):
        ticket, place, finish = under_way
        finish()
        levels.meet(ticket)
        if begin + slot < len(own):
            under_way = begin_piece(begin + slot)
        for memory, ranks in zip(levels.memories, levels.relayed, strict=True):
            for index, rank in enumerate(ranks):
                target = rows[rank][begin : begin + slot]
                target[:] = memory[place + index * slot :][: len(target)]


@dataclass(frozen=True)
class _Row:
    """A row, or a part of it, that this rank passes on.

    Attributes:
        memory: its memory on this rank.
        travelled: number of nodes that it has passed.
        before: the rank that sends it to this one.
        after: the rank that this one sends it to.
        arriving: the receives of its segments.
    """

    memory: Array
    travelled: int
    before: int
    after: int
    arriving: deque[MPI.Request] = field(default_factory=deque)

    @classmethod
    def of(cls, levels: Levels, rank: int, memory: Array) -> _Row:
        """Return the row of a rank."""
        nodes, here = levels.nodes, levels.node
        return cls(
            memory,
            (here - nodes.of_rank[rank]) % nodes.count,
            nodes.relay(rank, (here - 1) % nodes.count),
            nodes.relay(rank, (here + 1) % nodes.count),
        )

    def segment(self, number: int) -> Array:
        return self.memory[number * _SEGMENT_BYTES :][:_SEGMENT_BYTES]


def _pass_around(comm: MPI.Comm, nodes: int, rows: Sequence[_Row]) -> None:
    """Receive the missing rows, and pass each on, unless the next node has it."""
    from mpi4py import MPI

    segments = -(-len(rows[0].memory) // _SEGMENT_BYTES)
    # In each turn, all nodes receive rows that have passed the same number of nodes, and send
    # others.
    turns = [(turn, number) for turn in range(1, nodes) for number in range(segments)]
    # With short rows, each turn waits for the previous one: a sleep would take longer than the
    # message.
    wait = finish if segments > 1 else MPI.Request.Wait
    leaving: deque[MPI.Request] = deque()

    def receive(turn: int, number: int) -> None:
        for row in rows:
            if row.travelled == turn:
                row.arriving.append(comm.Irecv(row.segment(number), row.before, TAG))

    for ahead in turns[:_UNDER_WAY]:
        receive(*ahead)
    for at, (turn, number) in enumerate(turns):
        for row in rows:
            if row.travelled == turn - 1:
                if row.travelled:
                    wait(row.arriving.popleft())
                leaving.append(comm.Isend(row.segment(number), row.after, TAG))
        for ahead in turns[at + _UNDER_WAY : at + _UNDER_WAY + 1]:
            receive(*ahead)
        while len(leaving) > _UNDER_WAY * len(rows):
            wait(leaving.popleft())
    for request in (*leaving, *(request for row in rows for request in row.arriving)):
        wait(request)


def _short(levels: Levels, rows: Sequence[Array] | Array, own: Array) -> None:
    if isinstance(rows, np.ndarray):
        levels.comm.Allgather(own, rows)
        return
    whole = np.empty((levels.size, len(own)), np.uint8)
    levels.comm.Allgather(own, whole)
    for row, found in zip(rows, whole, strict=True):
        row[:] = found
