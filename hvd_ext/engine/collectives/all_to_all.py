"""all_to_all: every two ranks exchange a message, all of them under way at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_ext.engine.collectives.levels import Transfers

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.engine.collectives.levels import Levels


def all_to_all(levels: Levels, outs: Sequence[Array], owns: Sequence[Array]) -> None:
    """Give each rank one of `owns`, and fill `outs` with what each gave.

    Args:
        levels: the group's.
        outs: for each rank uint8, as long as what that rank gives this one.
        owns: for each rank uint8; an empty one makes no message.
    """
    transfers = Transfers(levels.comm)
    # Ranks of other nodes first, for the network takes longest; each begins with its neighbor, so
    # that no rank is everybody's first.
    others = [(levels.rank + distance) % levels.size for distance in range(1, levels.size)]
    others.sort(key=lambda rank: levels.nodes.of_rank[rank] == levels.node)
    for rank in others:
        transfers.receive(outs[rank], rank)
    for rank in others:
        transfers.send(owns[rank], rank)
    outs[levels.rank][:] = owns[levels.rank]
    transfers.wait()
