"""An allreduce that repeats, planned once: its ranks, buffer, operation and algorithm.

What a call would otherwise decide each time is decided when it is planned, so that a
call costs what its algorithm costs. `allreduce` is for one that does not repeat.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.allreduce import native
from hvd_ext.allreduce.algorithms import check_dtype, dtype_class_of, prepare
from hvd_ext.allreduce.operations import Array, operation
from hvd_ext.allreduce.table import BUILT_IN, Table
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import StallError, UsageError
from hvd_ext.events import CommEvent, emit, listening
from hvd_ext.job.progress_thread import Progress
from hvd_ext.job.watchdog import end_job, stall_sentence
from hvd_ext.settings import stall_timeout_s
from hvd_ext.shm.layout import align_up
from hvd_ext.shm.regions import WindowError
from hvd_ext.shm.window import Window, staging_bytes

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.job.topology import Topology

log = logging.getLogger("hvd_ext")

# Up to here it takes less to combine all parts oneself than to wait for others' shares.
_SHORTEST_IN_PLACE = 512


def allreduce(
    topology: Topology,
    buffer: Array,
    operation_name: str = "sum",
    *,
    table: Table = BUILT_IN,
) -> None:
    """Reduce `buffer` once, in place, by the algorithm that the table names for its size.

    Args and Raises are those of Planned. Nothing is set up: in memory that ranks do not
    share, the node's own exchange takes a plan.
    """
    dtype_class = dtype_class_of(buffer)
    ranks = topology.node.size
    chosen = table.choose(topology.nodes, ranks, "host", buffer.nbytes, dtype_class)
    reduction = operation(operation_name)
    if (
        chosen in ("native", "hierarchical")
        and dtype_class != "half"
        and operation_name != "average"
    ):
        native.allreduce(topology.world, buffer, reduction)
        return
    prepare("native" if chosen == "hierarchical" else chosen, topology.world, buffer, reduction)()


class Planned:
    """Reduces one buffer over all ranks, in place, each time it is called.

    Every rank plans it alike and calls or starts it in the same order among its plans.

    Attributes:
        buffer: 1-D; what is reduced, on the host.
        algorithm: what carries it.
    """

    algorithm: str
    _window: Window
    _started: bool
    _done: Future[None]

    def __init__(
        self,
        topology: Topology,
        buffer: Any,
        operation: str = "sum",
        *,
        dtype: str | None = None,
        algorithm: str | None = None,
        table: Table = BUILT_IN,
    ) -> None:
        """Plan the reduction of `buffer`; collective.

        Args:
            topology: nodes and ranks.
            buffer: contiguous and writable, of any shape: a numpy array or what speaks the
                array interface or the buffer protocol; or, by the CUDA array interface
                (with CuPy), device memory, which is staged through the host.
            operation: "sum", "average", "min", "max" or "product".
            dtype: "bfloat16" for an array of uint16 that holds it.
            algorithm: by default what the table names for its size.
            table: message sizes and their algorithms.

        Raises:
            UsageError: one of these is not served.
            WindowError: `hierarchical` is asked for, and the ranks cannot share memory.
        """
        self._device: Any = None
        if hasattr(buffer, "__cuda_array_interface__"):
            self._device = _on_device(buffer)
            buffer = np.empty(self._device.shape, self._device.dtype)
        self.buffer = _flat(buffer)
        self._plan(topology, operation, dtype or self.buffer.dtype.name, algorithm, table, "host")

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
        if dtype not in DTYPES:
            raise UsageError(f"dtype {dtype!r}: use one of {', '.join(DTYPES)}")
        self = cls.__new__(cls)
        self._device = None
        self._window = Window(topology.node, align_up(count * DTYPES[dtype].item_bytes))
        self.buffer = np.frombuffer(self._window.data, DTYPES[dtype].stored_as, count)
        self._plan(topology, operation, dtype, algorithm, table, "arena")
        return self

    def __call__(self) -> None:
        """Reduce the buffer.

        Raises:
            StallError: ranks did not come in time (`hierarchical` only: MPI waits).
            UsageError: it is started and not yet waited for.
        """
        if self._plain and not listening():
            if code := self._run():
                raise self._stall(code)
            return
        if self._started:
            raise UsageError("a plan that is started: call wait() before the next call")
        self._call(self._run)

    def start(self) -> None:
        """Begin to reduce the buffer, in the background; leave it alone until `wait`.

        What is started goes on a thread and a communicator of its own, one after the
        other in the order of the starts, which is the same on every rank.
        """
        if self._started:
            raise UsageError("a plan that is started: call wait() before the next start()")
        self._started, self._plain = True, False
        progress, comm = _background(self._topology)
        if self.algorithm == "hierarchical":
            run = self._run
        else:
            run = prepare(self.algorithm, comm, self.buffer, self._operation, self._dtype)
        self._done = progress.submit(functools.partial(self._call, run))

    def wait(self) -> None:
        """Wait for what was started; raises what it raised."""
        if not self._started:
            raise UsageError("a plan that is not started: call start() before wait()")
        self._started, self._plain = False, self._device is None
        self._done.result()

    def _call(self, run: Callable[[], int | None]) -> None:
        if self._device is not None:
            self._device.get(out=self.buffer.reshape(self._device.shape))
        start_s = time.monotonic()
        if code := run():
            raise self._stall(code)
        if self._device is not None:
            self._device.set(self.buffer.reshape(self._device.shape))
        if listening():
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
        check_dtype(self.buffer, dtype)
        self._topology = topology
        self._operation = operation(name)
        self._dtype = dtype
        self._started = False
        self._plain = self._device is None  # nothing but to run it
        self._timeout_s = stall_timeout_s()
        message_bytes = self.buffer.nbytes
        one_node = topology.cross.size == 1
        ranks = topology.node.size
        dtype_class = DTYPES[dtype].dtype_class
        chosen = table.choose(topology.nodes, ranks, memory, message_bytes, dtype_class)
        if algorithm is None and chosen == "hierarchical" and not one_node:
            chosen = "native"
        self.algorithm = algorithm or chosen
        if self.algorithm != "hierarchical":
            self._plan_by_messages()
            return
        if not one_node:
            raise UsageError(
                f"hierarchical on {topology.nodes} nodes: it is for one node here, and for "
                "gradients on several; use another algorithm"
            )
        if name == "average" and dtype_class == "integer":
            raise UsageError(f"average of {dtype}: whole numbers have none; use sum")
        scale = 1 / topology.world.size if name == "average" else 1.0
        combined = "sum" if name == "average" else self._operation.name
        if memory == "arena" and message_bytes > _SHORTEST_IN_PLACE:
            self._plan_arena(dtype, combined, scale)
            return
        try:
            self._plan_outside(dtype, combined, scale)
        except WindowError as error:  # on every rank alike
            if algorithm is not None:
                raise
            if topology.world.rank == 0:
                log.warning("hvd_ext: a planned allreduce is the MPI library's own, %s", error)
            self.algorithm = "native"
            self._plan_by_messages()

    def _plan_by_messages(self) -> None:
        self._run: Callable[[], int | None] = prepare(
            self.algorithm, self._topology.world, self.buffer, self._operation, self._dtype
        )

    def _plan_arena(self, dtype: str, combined: str, scale: float) -> None:
        exchange = self._window.plan(
            0, self.buffer.size, dtype, scale, local=True, operation=combined
        )
        self._run = self._window.repeated(exchange, self._timeout_s)

    def _plan_outside(self, dtype: str, combined: str, scale: float) -> None:
        self._window = window = Window(self._topology.node, staging_bytes(self.buffer.nbytes))
        exchange = window.plan_staged(dtype, self.buffer.size, combined, scale)
        self._run = window.repeated(exchange, self._timeout_s, self.buffer.ctypes.data)

    def _stall(self, code: int) -> StallError:
        of_node = self._topology.node_world_ranks()
        ranks = [of_node[rank] for rank in self._window.late(code).args[0]]
        error = StallError(stall_sentence(self._topology, ranks, self._timeout_s))
        end_job(error)
        return error


@functools.cache
def _background(topology: Topology) -> tuple[Progress, MPI.Comm]:
    """The thread and the communicator of what is started; collective the first time."""
    comm = topology.world.Dup()
    comm.Set_name("hvd_ext.background")
    return Progress(), comm


def _flat(buffer: Any) -> Array:
    """The same memory as a 1-D array."""
    try:
        array = np.asarray(buffer, copy=False)
    except ValueError:
        raise UsageError(
            f"a buffer of type {type(buffer).__name__}: it must be memory that can be written "
            "in place, such as a numpy array"
        ) from None
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise UsageError(
            f"a buffer of shape {array.shape} and strides {array.strides}: give one that is "
            "contiguous and writable"
        )
    return array.reshape(-1)


def _on_device(buffer: Any) -> Any:
    try:
        import cupy
    except ImportError:
        raise UsageError("a buffer in device memory takes CuPy: pip install cupy-cuda12x") from None
    return cupy.asarray(buffer)
