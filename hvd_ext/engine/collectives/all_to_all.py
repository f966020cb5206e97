"""all_to_all: every two ranks exchange a message, all of them under way at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.engine.collectives.levels import Transfers

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.engine.collectives.levels import Levels


def all_to_all(
    levels: Levels, out: Array, out_bytes: Sequence[int], own: Array, own_bytes: Sequence[int]
) -> None:
    """Give each rank its part of `own`, and fill `out` with what each gave.

    Args:
        levels: the group's.
        out: uint8, in the order of ranks.
        out_bytes: how much each rank gives this one.
        own: uint8, in the order of ranks.
        own_bytes: how much this rank gives each; none makes no message.
    """
    given = np.split(own, np.cumsum(own_bytes)[:-1])
    taken = np.split(out, np.cumsum(out_bytes)[:-1])
    transfers = Transfers(levels.comm)
    # Ranks of other nodes first, for the network takes longest; each begins with its neighbor, so
    # that no rank is everybody's first.
    others = [(levels.rank + distance) % levels.size for distance in range(1, levels.size)]
    others.sort(key=lambda rank: levels.nodes.of_rank[rank] == levels.node)
    for rank in others:
        transfers.receive(taken[rank], rank)
    for rank in others:
        transfers.send(given[rank], rank)
    taken[levels.rank][:] = given[levels.rank]
    transfers.wait()
