"""A carrier whose collectives are events: a recorder counts them as it counts MPI's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_ext.events import CommEvent, Operation, emit, listening

if TYPE_CHECKING:
    from hvd_ext.allreduce.operations import Array
    from hvd_ext.c10d.backend.carrier import Carrier


class Reported:
    """A Carrier over another one.

    A vector that all ranks hold or share out in the end is counted whole.

    Attributes:
        carrier: the other one.
    """

    def __init__(self, carrier: Carrier, size: int) -> None:
        """Take over a carrier.

        Args:
            carrier: of the group.
            size: of the group.
        """
        self.carrier, self._size, self.name = carrier, size, carrier.name
        self.expect, self.missing = carrier.expect, carrier.missing
        self.refuse, self.fail = carrier.refuse, carrier.fail
        self.abort, self.close = carrier.abort, carrier.close

    def all_reduce(self, array: Array, dtype: str, operation: str, scale: float) -> str:
        start_s = time.monotonic()
        algorithm = self.carrier.all_reduce(array, dtype, operation, scale)
        self._report("allreduce", array.nbytes, start_s, algorithm)
        return algorithm

    def reduce_scatter(
        self, out: Array, own: Array, dtype: str, scale: float, operation: str
    ) -> None:
        start_s = time.monotonic()
        self.carrier.reduce_scatter(out, own, dtype, scale, operation)
        self._report("reduce_scatter", own.nbytes, start_s)

    def all_gather(self, out: Array, own: Array) -> None:
        start_s = time.monotonic()
        self.carrier.all_gather(out, own)
        self._report("allgather", out.nbytes, start_s)

    def all_gather_rows(self, rows: Sequence[Array], own: Array) -> None:
        start_s = time.monotonic()
        self.carrier.all_gather_rows(rows, own)
        self._report("allgather", len(rows) * own.nbytes, start_s)

    def broadcast(self, array: Array, root: int) -> None:
        start_s = time.monotonic()
        self.carrier.broadcast(array, root)
        self._report("bcast", array.nbytes, start_s)

    def all_to_all(self, outs: Sequence[Array], owns: Sequence[Array]) -> None:
        start_s = time.monotonic()
        self.carrier.all_to_all(outs, owns)
        self._report("alltoall", sum(own.nbytes for own in owns), start_s)

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
            emit(CommEvent(operation, used, count_bytes, self._size, start_s, 0.0, lasted_s))
