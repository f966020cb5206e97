"""Within a node: straight from the memory that its ranks share.

A buffer in the window is reduced in place: each rank reduces its shard. Any other buffer goes
through the window: a short one in one shot (every rank puts its part there and combines all parts
itself), a longer one in two, piece by piece (reduce-scatter, then allgather). Only peers' shards
are copied there; results are written to the buffer and to peers' windows, from where each rank
copies them.
Time: 2 (k-1) a + (k-1)/k n (2 b + g), where a and b are those of a memory copy; for a buffer
elsewhere 4 b instead of 2 b.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError
from hvd_ext.shm.window import NodeExchange, NodeWindow, staging_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py import MPI

    from hvd_ext.allreduce.operations import Array
    from hvd_ext.job.topology import Topology

# Up to this size, combining all parts oneself takes less time than waiting for others' shards.
_SHORTEST_IN_PLACE = 512
# A wait has slices, so that Python can handle Ctrl-C between them, on any thread.
_SLICE_S = 0.2


class SharedMemoryExchange:
    """An Exchange of one buffer among the ranks of one node; collective to make.

    Attributes:
        run: reduces it; anything but 0 means that ranks did not arrive yet.
    """

    def __init__(
        self,
        topology: Topology,
        buffer: Array,
        operation: str,
        dtype: str,
        timeout_s: float,
        window: NodeWindow | None = None,
    ) -> None:
        """Plan the exchange.

        Args:
            topology: one node.
            buffer: 1-D, contiguous and writable.
            operation: its name.
            dtype: type of the buffer's elements.
            timeout_s: how long ranks are waited for.
            window: where the buffer begins, if it lies in one.

        Raises:
            UsageError: several nodes, or an average of integers.
            WindowError: ranks cannot share memory; on every rank alike.
        """
        if not topology.one_node:
            raise UsageError(
                f"shared_memory on {topology.nodes} nodes: it is for one node; use another "
                "algorithm"
            )
        scale = 1.0
        if operation == "average":
            if DTYPES[dtype].dtype_class == "integer":
                raise UsageError(f"average of {dtype}: use sum, or a float dtype")
            operation, scale = "sum", 1 / topology.world.size
        address: int | None = None
        planned: NodeExchange
        if window is not None and buffer.nbytes > _SHORTEST_IN_PLACE:
            planned = window.plan(0, buffer.size, dtype, scale, local=True, operation=operation)
        else:
            window = NodeWindow(topology.node, staging_bytes(buffer.nbytes, topology.node.size))
            planned = window.plan_staged(dtype, buffer.size, operation, scale)
            address = buffer.ctypes.data
        self._window = window
        self._monitor = topology.monitor(timeout_s, "a planned allreduce")
        self.run = window.repeated(planned, min(_SLICE_S, timeout_s), address)

    def on(self, comm: MPI.Comm) -> Callable[[], int | None]:
        """Return the same exchange: it sends no messages that another thread's could match."""
        return self.run

    def resume(self, code: int) -> None:
        """Continue to wait for the ranks that are late.

        Raises:
            StallError: they did not arrive in time, or ended.
        """

        def wait(_: float) -> None:
            if again := self.run():
                raise self._window.late(again)

        self._monitor(wait)
