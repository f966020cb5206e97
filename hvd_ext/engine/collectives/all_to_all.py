"""all_to_all: in each turn a rank sends to one rank and receives from another, segment by segment.

If all ranks sent to one at once, packets would queue for its link, and be dropped. An MPI library
announces a long message, and over TCP the answer waits behind the data that its sender is sending.
With whole messages, one direction of the link would be idle after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_ext.arithmetic.allreduce_work import SEGMENT_BYTES
from hvd_ext.engine.collectives.levels import Transfers
from hvd_ext.units import KIB

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.engine.collectives.levels import Levels

# Segments under way; more of them as long as all that is under way is short.
_UNDER_WAY, _SHORT_BYTES = 2, 64 * KIB


def all_to_all(levels: Levels, outs: Sequence[Array], owns: Sequence[Array]) -> None:
    """Send each rank one of `owns`, and receive each rank's block into `outs`.

    Args:
        levels: the group's levels.
        outs: for each rank uint8, as long as the block that this rank gets from it.
        owns: for each rank uint8; an empty one makes no message.
    """
    under_way: deque[Transfers] = deque()
    for distance in range(1, levels.size):
        to = (levels.rank + distance) % levels.size
        source = (levels.rank - distance) % levels.size
        for begin in range(0, max(len(outs[source]), len(owns[to])), SEGMENT_BYTES):
            while (
                len(under_way) >= _UNDER_WAY and sum(one.bytes for one in under_way) >= _SHORT_BYTES
            ):
                under_way.popleft().wait()
            transfers = Transfers(levels.comm)
            transfers.receive(outs[source][begin : begin + SEGMENT_BYTES], source)
            transfers.send(owns[to][begin : begin + SEGMENT_BYTES], to)
            under_way.append(transfers)
    outs[levels.rank][:] = owns[levels.rank]
    for transfers in under_way:
        transfers.wait()
