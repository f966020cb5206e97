"""An allreduce that repeats, planned once: its ranks, buffer, operation and algorithm.

Planning makes the decisions that each call would otherwise make, so that a call costs
no more than its algorithm (MPI-4: a persistent collective, MPI_Allreduce_init).
`allreduce` is for a single call.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_ext.allreduce.algorithms import NATIVE, SHARED_MEMORY, native
from hvd_ext.allreduce.buffers import window_over
from hvd_ext.allreduce.choice import Group, choose
from hvd_ext.allreduce.exchange import Exchange, MessageExchange, PlannedCall, StagedFromDevice
from hvd_ext.allreduce.operations import Array, Operation, find_operation
from hvd_ext.allreduce.prepare import check_dtype, dtype_class_of, prepare
from hvd_ext.allreduce.shared_memory import SharedMemoryExchange
from hvd_ext.allreduce.table import BUILT_IN, Table, built_in
from hvd_ext.dtypes import DTYPES
from hvd_ext.errors import UsageError
from hvd_ext.events import CommEvent, emit, listening
from hvd_ext.job.progress_thread import ProgressThread
from hvd_ext.shm.c_call import CCall
from hvd_ext.shm.layout import align_up
from hvd_ext.shm.regions import WindowError
from hvd_ext.shm.window import NodeWindow
from hvd_ext.variables import STALL_TIMEOUT_S

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology

log = logging.getLogger("hvd_ext")
_END_WITHIN_S = 5.0


def allreduce(
    topology: Topology,
    buffer: Array,
    operation_name: str = "sum",
    *,
    dtype: str | None = None,
    table: Table = BUILT_IN,
) -> None:
    """Reduce a buffer once, in place, by the algorithm that the table names for its size.

    Nothing is set up, so ranks that share memory use the MPI library's allreduce. A collective.

    Args:
        topology: the ranks, and how they share nodes.
        buffer: 1-D array, as of PersistentAllreduce.
        operation_name: "sum", "average", "min", "max" or "product".
        dtype: "bfloat16" for an array of uint16 that holds it.
        table: chooses the algorithm.

    Raises:
        UsageError: an unknown operation, or an average of integers.
    """
    dtype_class = DTYPES[dtype].dtype_class if dtype else dtype_class_of(buffer)
    chosen = choose(table, Group.of_all(topology), buffer.nbytes, dtype_class)
    reduction = find_operation(operation_name)
    if chosen == NATIVE and dtype_class != "half" and operation_name != "average":
        native.allreduce(topology.world, buffer, reduction)
        return
    prepare(chosen, topology.world, buffer, reduction, dtype)()


class PersistentAllreduce:
    """Reduces one buffer over all ranks, in place, each time it is called.

    All ranks make the same ones, and call or start them in the same order.

    Attributes:
        buffer: the reduced array, 1-D, on the host.
        algorithm: name of the algorithm that reduces it.

    Calling it raises:
        StallError: ranks did not arrive in time (`shared_memory` only: MPI waits).
        MPI.Exception: the library refuses.
        UsageError: it was started, and not waited for.
    """

    # A call goes straight to this object's function, without a Python frame.
    __slots__ = ("__call__", "__dict__", "__weakref__")
    __call__: Callable[[], None]
    algorithm: str
    _exchange: Exchange
    _started: Future[None] | None

    def __init__(
        self,
        topology: Topology,
        buffer: Any,
        operation: str = "sum",
        *,
        dtype: str | None = None,
        algorithm: str | None = None,
        table: Table | None = None,
    ) -> None:
        """Plan the reduction of `buffer`; collective.

        Args:
            topology: nodes and ranks.
            buffer: contiguous and writable, of any shape: a numpy array or anything with the
                array interface or the buffer protocol; or, by the CUDA array interface
                (with CuPy), device memory, which is staged through the host.
            operation: "sum", "average", "min", "max" or "product".
            dtype: "bfloat16" for an array of uint16 that holds it.
            algorithm: by default the one that the table names for its size.
            table: message sizes and their algorithms; by default the built-in of this MPI library.

        Raises:
            UsageError: one of these is not supported.
            WindowError: `shared_memory` is asked for, and the ranks cannot share memory.
        """
        device: Any = None
        if hasattr(buffer, "__cuda_array_interface__"):
            device = _on_device(buffer)
            buffer = np.empty(device.shape, device.dtype)
        self.buffer = _flat(buffer)
        window = None
        if device is None and topology.one_node and algorithm in (None, SHARED_MEMORY):
            window = window_over(topology, self.buffer)
        self._plan(topology, operation, dtype, algorithm, table, window)
        if device is not None:
            self._exchange = StagedFromDevice(self._exchange, device, self.buffer)
            self._use()

    @classmethod
    def in_arena(
        cls,
        topology: Topology,
        count: int,
        dtype: str,
        operation: str = "sum",
        *,
        algorithm: str | None = None,
        table: Table | None = None,
    ) -> PersistentAllreduce:
        """Plan the reduction of memory that the node's ranks share; a collective.

        Args:
            topology: the ranks, and how they share nodes.
            count: elements of `buffer`, which is allocated here.
            dtype: name of their type, such as "float32" or "bfloat16".
            operation: "sum", "average", "min", "max" or "product".
            algorithm: overrides the table.
            table: chooses the algorithm; by default the one of the job.

        Returns:
            The planned allreduce; write to its `buffer` and call it.

        Raises:
            UsageError: an unknown dtype, operation or algorithm.
            WindowError: the ranks of a node cannot share memory.
        """
        if dtype not in DTYPES:
            raise UsageError(f"dtype {dtype!r}: use one of {', '.join(DTYPES)}")
        self = cls.__new__(cls)
        window = NodeWindow(topology.node, align_up(count * DTYPES[dtype].item_bytes))
        self.buffer = np.frombuffer(window.data, DTYPES[dtype].stored_as, count)
        self._plan(topology, operation, dtype, algorithm, table, window)
        return self

    def start(self) -> None:
        """Begin to reduce the buffer, in the background; leave it alone until `wait`.

        Started calls run on a separate thread and communicator, one after the other in
        the order of the starts, which is the same on every rank.
        """
        self._check_idle()
        background = self._topology.keep(_Background)
        run = self._exchange.on(background.comm)
        self._started = background.thread.submit(partial(self._call, run))
        self.__call__ = self._without_cycle(PersistentAllreduce._check_idle)

    def wait(self) -> None:
        """Wait for the reduction that was started, and raise its error, if any."""
        if self._started is None:
            raise UsageError("not started: call start() before wait()")
        done, self._started = self._started, None
        self.__call__ = self._direct
        done.result()

    def _check_idle(self) -> None:
        if self._started is not None:
            raise UsageError("already started: call wait() before the next call or start()")

    def _call(self, run: PlannedCall) -> None:
        start_s = time.monotonic()
        if code := run():
            self._exchange.resume(code)
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
        dtype: str | None,
        algorithm: str | None,
        table: Table | None,
        window: NodeWindow | None = None,
    ) -> None:
        dtype = check_dtype(self.buffer, dtype)
        self._topology = topology
        self._started = None
        reduction = find_operation(name)
        if algorithm is None:
            from mpi4py import MPI

            memory = "host" if window is None else "arena"
            table = built_in(MPI.Get_library_version()) if table is None else table
            group = Group.of_all(topology, may_share=True)
            dtype_class = DTYPES[dtype].dtype_class
            self.algorithm = choose(table, group, self.buffer.nbytes, dtype_class, memory)
        else:
            self.algorithm = algorithm
        plan = partial(_exchange, topology, self.buffer, reduction, dtype, window=window)
        try:
            self._exchange = plan(self.algorithm)
        except WindowError as error:  # on every rank alike
            if algorithm is not None:
                raise
            if topology.world.rank == 0:
                log.warning("hvd_ext: a planned allreduce falls back to MPI's own: %s", error)
            self.algorithm = NATIVE
            self._exchange = plan(NATIVE)
        self._use()

    def _use(self) -> None:
        """Make calls run the exchange."""
        run = self._exchange.run
        finish = self._without_cycle(PersistentAllreduce._finish)
        self._direct = run.built_in(finish) if isinstance(run, CCall) else partial(finish, 0)
        self.__call__ = self._direct

    def _finish(self, code: int) -> None:
        """Finish a call that returned a code, or make a call."""
        if code:
            self._exchange.resume(code)
        else:
            self._call(self._exchange.run)

    def _without_cycle(self, method: Callable[..., None]) -> Callable[..., None]:
        """Return a method of this object that does not keep the object alive."""
        return partial(method, weakref.proxy(self))


def _exchange(
    topology: Topology,
    buffer: Array,
    reduction: Operation,
    dtype: str,
    algorithm: str,
    window: NodeWindow | None,
) -> Exchange:
    if algorithm == SHARED_MEMORY:
        timeout_s = STALL_TIMEOUT_S.read()
        return SharedMemoryExchange(topology, buffer, reduction.name, dtype, timeout_s, window)
    return MessageExchange(algorithm, topology.world, buffer, reduction, dtype)


class _Background:
    """Return the thread and the communicator for started reductions; making them is collective."""

    def __init__(self, topology: Topology) -> None:
        self._lease = topology.borrow("background", topology.world)
        (self.comm,) = self._lease.comms
        self.thread = ProgressThread()

    def close(self) -> None:
        self.thread.close()
        if self.thread.join(_END_WITHIN_S):
            self._lease.give_back()


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
        raise UsageError("a buffer in device memory needs CuPy: pip install cupy-cuda12x") from None
    return cupy.asarray(buffer)
