"""all_to_all: every two ranks exchange a message, segment by segment, with all ranks at once.

A library announces a long message, and over TCP an answer waits behind what its sender sends
meanwhile: whole messages would leave the link idle in one direction after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_ext.arithmetic.allreduce_work import SEGMENT_BYTES
from hvd_ext.engine.collectives.levels import Transfers

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.engine.collectives.levels import Levels

_UNDER_WAY = 2  # segments


def all_to_all(levels: Levels, outs: Sequence[Array], owns: Sequence[Array]) -> None:
    """Give each rank one of `owns`, and fill `outs` with what each gave.

    Args:
        levels: the group's.
        outs: for each rank uint8, as long as what that rank gives this one.
        owns: for each rank uint8; an empty one makes no message.
    """
    # Ranks of other nodes first, for the network takes longest; each begins with its neighbor, so
    # that no rank is everybody's first.
    others = [(levels.rank + distance) % levels.size for distance in range(1, levels.size)]
    others.sort(key=lambda rank: levels.nodes.of_rank[rank] == levels.node)
    under_way: deque[Transfers] = deque()
    for begin in range(0, max(map(len, (*outs, *owns))), SEGMENT_BYTES):
        if len(under_way) == _UNDER_WAY:
            under_way.popleft().wait()
        transfers = Transfers(levels.comm)
        for rank in others:
            transfers.receive(outs[rank][begin : begin + SEGMENT_BYTES], rank)
        for rank in others:
            transfers.send(owns[rank][begin : begin + SEGMENT_BYTES], rank)
        under_way.append(transfers)
    outs[levels.rank][:] = owns[levels.rank]
    for transfers in under_way:
        transfers.wait()
