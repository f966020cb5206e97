"""A carrier that reports its collectives as events: a recorder counts them like MPI's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_ext.events import CommEvent, Operation, emit, listening

if TYPE_CHECKING:
    from hvd_ext.engine.carrier import Carrier
    from hvd_ext.shm.block import Block


class Reported:
    """A Carrier over another one.

    A vector that all ranks hold at the end, or that they divide, is counted as a whole.

    Attributes:
        carrier: the other carrier.
    """

    def __init__(self, carrier: Carrier) -> None:
        """Take over a carrier."""
        self.carrier, self.name = carrier, carrier.name
        self.rank, self.size = carrier.rank, carrier.size
        self.expect, self.missing = carrier.expect, carrier.missing
        self.refuse, self.fail = carrier.refuse, carrier.fail
        self.abort, self.close = carrier.abort, carrier.close

    def all_reduce(self, block: Block, dtype: str, operation: str, scale: float) -> str:
        start_s = time.monotonic()
        algorithm = self.carrier.all_reduce(block, dtype, operation, scale)
        self._report("allreduce", block.count_bytes, start_s, algorithm)
        return algorithm

    def reduce_scatter(
        self, out: Block, own: Block, dtype: str, scale: float, operation: str
    ) -> None:
        start_s = time.monotonic()
        self.carrier.reduce_scatter(out, own, dtype, scale, operation)
        self._report("reduce_scatter", own.count_bytes, start_s)

    def all_gather(self, out: Block, own: Block) -> None:
        start_s = time.monotonic()
        self.carrier.all_gather(out, own)
        self._report("allgather", out.count_bytes, start_s)

    def all_gather_rows(self, rows: Sequence[Block], own: Block) -> None:
        start_s = time.monotonic()
        self.carrier.all_gather_rows(rows, own)
        self._report("allgather", len(rows) * own.count_bytes, start_s)

    def broadcast(self, block: Block, root: int) -> None:
        start_s = time.monotonic()
        self.carrier.broadcast(block, root)
        self._report("bcast", block.count_bytes, start_s)

    def all_to_all(self, outs: Sequence[Block], owns: Sequence[Block]) -> None:
        start_s = time.monotonic()
        self.carrier.all_to_all(outs, owns)
        self._report("alltoall", sum(own.count_bytes for own in owns), start_s)

    def barrier(self) -> None:
        start_s = time.monotonic()
        self.carrier.barrier()
        self._report("barrier", 0, start_s)

    def _report(
        self, operation: Operation, count_bytes: int, start_s: float, algorithm: str = ""
    ) -> None:
        if listening():
            lasted_s = time.monotonic() - start_s
            used = algorithm or self.name
            emit(CommEvent(operation, used, count_bytes, self.size, start_s, 0.0, lasted_s))
