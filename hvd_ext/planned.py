"""An allreduce that repeats, planned once: its ranks, buffer, operation and algorithm.

What a call would otherwise decide each time is decided when it is planned, so that a
call costs what its algorithm costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hvd_ext.allreduce.operations import Array, operation
from hvd_ext.allreduce.registry import prepare
from hvd_ext.allreduce.table import BUILT_IN, DTYPE_CLASSES, Table
from hvd_ext.arena.plan import ITEM_BYTES, Bucket, line_up
from hvd_ext.arena.window import Window
from hvd_ext.errors import StallError, UsageError
from hvd_ext.events import CommEvent, emit, listening
from hvd_ext.settings import stall_timeout_s
from hvd_ext.watchdog import end_job, stall_sentence

if TYPE_CHECKING:
    from hvd_ext.topology import Topology

# Longer ones than this, outside the arena, are not served by the node's window: every
# rank would read all of every other's.
SHORT_BYTES = 16 << 10


class Planned:
    """Reduces one buffer over all ranks, in place, each time it is called.

    Every rank plans it alike and calls it in the same order among its plans.

    Attributes:
        buffer: 1-D; what is reduced.
        algorithm: what carries it.
    """

    _window: Window

    def __init__(
        self,
        topology: Topology,
        buffer: Array,
        operation: str = "sum",
        *,
        dtype: str | None = None,
        algorithm: str | None = None,
        table: Table = BUILT_IN,
    ) -> None:
        """Plan the reduction of `buffer`; collective.

        Args:
            topology: nodes and ranks.
            buffer: 1-D, contiguous and writable, anywhere in host memory.
            operation: "sum", "average", "min", "max" or "product".
            dtype: "bfloat16" for an array of uint16 that holds it.
            algorithm: by default what the table names for its size.
            table: message sizes and their algorithms.

        Raises:
            UsageError: one of these is not served.
            WindowError: `hierarchical`, and the ranks cannot share memory.
        """
        self.buffer = buffer
        self._plan(topology, operation, dtype or buffer.dtype.name, algorithm, table, "host")

    @classmethod
    def in_arena(
        cls,
        topology: Topology,
        count: int,
        dtype: str,
        operation: str = "sum",
        *,
        algorithm: str | None = None,
        table: Table = BUILT_IN,
    ) -> Planned:
        """Plan the reduction of memory that the node's ranks share; it is in `buffer`.

        Args and Raises are those of Planned, but that WindowError may always rise.
        """
        if dtype not in ITEM_BYTES:
            raise UsageError(f"dtype {dtype!r}: use one of {', '.join(ITEM_BYTES)}")
        self = cls.__new__(cls)
        self._window = Window(topology.node, line_up(count * ITEM_BYTES[dtype]))
        stored = "uint16" if dtype == "bfloat16" else dtype
        self.buffer = np.frombuffer(self._window.data, stored, count)
        self._plan(topology, operation, dtype, algorithm, table, "arena")
        return self

    def __call__(self) -> None:
        """Reduce the buffer.

        Raises:
            StallError: ranks did not come in time (`hierarchical` only: MPI waits).
        """
        if not listening():
            self._run()
            return
        start_s = time.monotonic()
        self._run()
        emit(
            CommEvent(
                "allreduce",
                self.algorithm,
                self.buffer.nbytes,
                self._topology.world.size,
                start_s,
                0.0,
                time.monotonic() - start_s,
            )
        )

    def _plan(
        self,
        topology: Topology,
        name: str,
        dtype: str,
        algorithm: str | None,
        table: Table,
        memory: str,
    ) -> None:
        self._topology = topology
        self._timeout_s = stall_timeout_s()
        self._ticket = 0
        message_bytes = self.buffer.nbytes
        one_node = topology.cross.size == 1
        ranks = topology.node.size
        dtype_class = DTYPE_CLASSES.get(dtype, "float")
        chosen = table.choose(topology.nodes, ranks, memory, message_bytes, dtype_class)
        served = one_node and (memory == "arena" or message_bytes <= SHORT_BYTES)
        if algorithm is None and chosen == "hierarchical" and not served:
            chosen = "native"
        self.algorithm = algorithm or chosen
        if self.algorithm != "hierarchical":
            self._run: Callable[[], None] = prepare(
                self.algorithm, topology.world, self.buffer, operation(name), dtype
            )
            return
        if not served:
            raise UsageError(
                f"hierarchical for {message_bytes} bytes outside the arena, or on several nodes: "
                f"use Planned.in_arena on one node, at most {SHORT_BYTES} bytes, or another "
                "algorithm"
            )
        if name == "average" and dtype_class == "integer":
            raise UsageError(f"average of {dtype}: whole numbers have none; use sum")
        scale = 1 / topology.world.size if name == "average" else 1.0
        combined = "sum" if name == "average" else operation(name).name
        if memory == "arena":
            self._plan_arena(dtype, combined, scale)
        else:
            self._plan_short(dtype, combined, scale)

    def _plan_arena(self, dtype: str, combined: str, scale: float) -> None:
        window = self._window
        exchange = window.plan(Bucket(dtype, 0, self.buffer.size, ()), scale, True, combined)

        def run() -> None:
            self._ticket += 1
            try:
                window.exchange(exchange, self._ticket, self._timeout_s)
            except OSError as late:
                raise self._stall(late.args[0]) from None

        self._run = run

    def _plan_short(self, dtype: str, combined: str, scale: float) -> None:
        window = Window(self._topology.node, 2 * line_up(self.buffer.nbytes))
        exchange = window.plan_short(dtype, self.buffer.size, combined, scale)
        address = self.buffer.ctypes.data

        def run() -> None:
            self._ticket += 1
            try:
                window.exchange_short(exchange, address, self._ticket, self._timeout_s)
            except OSError as late:
                raise self._stall(late.args[0]) from None

        self._run = run

    def _stall(self, local_ranks: list[int]) -> StallError:
        of_node = self._topology.node_world_ranks()
        ranks = [of_node[rank] for rank in local_ranks]
        error = StallError(stall_sentence(self._topology, ranks, self._timeout_s))
        end_job(error)
        return error
