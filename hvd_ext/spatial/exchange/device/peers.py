"""The ranks of a group whose GPUs' memory this rank can open, and their synchronization.

GPUs synchronize by events. An event of another process is valid only once it is recorded, which a
number in shared memory of the host reports: a rank records the event, then writes the number. So a
host waits until another host has queued its work, and never for a GPU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hvd_ext.arena.cuda.ipc import Exported, Opened, or_window_error, settle
from hvd_ext.errors import StallError
from hvd_ext.job.waiting import until
from hvd_ext.shm.flags import read_word, write_word
from hvd_ext.shm.regions import CONTROL_BYTES, TOKEN_BYTES, map_regions, on_every_rank_of
from hvd_ext.spatial.exchange.device.moves import Move, table
from hvd_ext.variables import STALL_TIMEOUT_S

if TYPE_CHECKING:
    from mpi4py import MPI

# Slots, and so the exchanges that may overlap: while one is read, the next one is written.
SLOTS = 2
# Kinds of events and words, one of each for each slot.
SENT, TAKEN, SUMMAND = range(0, 3 * SLOTS, SLOTS)
_KINDS = 3
SUM_BYTES = 4 << 20  # bytes of each slot of the memory for sums
_REGION_BYTES = 4096
_FIRST_WORD = CONTROL_BYTES + TOKEN_BYTES
_UNTIMED = 0x02  # cudaEventDisableTiming
_THREADS = 256
_MOST_BLOCKS = 64  # a row of the kernel's table
_MOST_TABLES = 512
# Usually the other host arrives before this many polls.
_LOOKS = 5000


def node_of(comm: MPI.Comm) -> MPI.Comm:
    """Return the ranks of `comm` that can share memory with this one; collective."""
    from mpi4py import MPI

    return comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)


class Peers:
    """This rank's GPU and those of the node's other ranks.

    Attributes:
        comm: the group, for messages between hosts.
        ordinal: number of the GPU in this process.
        ranks: the node's ranks by local rank, as numbers in the group.
        runtime: CuPy's runtime.
        stream: stream for exchanges, in which torch does not compute.
        events: events of each of `ranks`, by kind and slot.
        sums: address of each rank's memory for sums.
    """

    def __init__(
        self, comm: MPI.Comm, ordinal: int, stalled: Callable[[Sequence[int], str], str]
    ) -> None:
        """Open the others' events and memory; collective over `comm`.

        Args:
            comm: the group; only this object uses it.
            ordinal: number of this rank's GPU in this process.
            stalled: makes the error text that names late ranks.

        Raises:
            WindowError: on every rank alike, if GPUs cannot share memory, or CuPy is missing.
        """
        self.comm, self.ordinal, self._stalled = comm, ordinal, stalled
        node = node_of(comm)
        self.ranks: list[int] = node.allgather(comm.rank)
        on_every_rank_of(comm, lambda: settle(ordinal))
        own = on_every_rank_of(comm, lambda: Exported(ordinal, SLOTS * SUM_BYTES, _KINDS * SLOTS))
        regions = on_every_rank_of(comm, lambda: map_regions(node, _REGION_BYTES, huge=False))
        words = [np.frombuffer(region, np.uint8) for region in regions]
        self._words = {
            rank: array.ctypes.data + _FIRST_WORD
            for rank, array in zip(self.ranks, words, strict=True)
        }
        handles = node.allgather(own.handles)
        everybodys = on_every_rank_of(
            comm,
            lambda: [
                own if rank == comm.rank else Opened(ordinal, theirs)
                for rank, theirs in zip(self.ranks, handles, strict=True)
            ],
        )
        # Keeps the memory behind the addresses.
        self._keep = (own, everybodys, regions)
        self.events = {r: m.events for r, m in zip(self.ranks, everybodys, strict=True)}
        self.sums = {r: m.address for r, m in zip(self.ranks, everybodys, strict=True)}
        self._tables: OrderedDict[bytes, Any] = OrderedDict()
        on_every_rank_of(comm, self._prepare)
        node.Free()

    def _prepare(self) -> None:
        with or_window_error(f"the kernels for GPU {self.ordinal}"):
            import cupy

            self.runtime = cupy.cuda.runtime
            self.on_gpu: Callable[[], Any] = partial(cupy.cuda.Device, self.ordinal)
            with self.on_gpu():
                self._move = self.kernel(__package__ or "", "move.cu", "move")
                self.stream = cupy.cuda.Stream(non_blocking=True)
                # Events within this process, between its own streams.
                self._given, self._done = (
                    self.runtime.eventCreateWithFlags(_UNTIMED) for _ in range(2)
                )

    def kernel(self, package: str, source: str, name: str) -> Any:
        """Compile a kernel of a package's source now and not in the first step."""
        import cupy

        module = cupy.RawModule(code=files(package).joinpath(source).read_text(encoding="utf-8"))
        module.compile()
        return module.get_function(name)

    def pinned(self, nbytes: int) -> Any:
        """Allocate host memory that the GPU reads and writes, a 1-D array of uint8."""
        import cupy

        with self.on_gpu():
            whole = cupy.cuda.alloc_pinned_memory(max(1, nbytes))
        return np.frombuffer(whole, np.uint8, nbytes)

    def follow(self, stream: int) -> None:
        """Let this object's stream wait for all work queued in `stream` so far."""
        self.runtime.eventRecord(self._given, stream)
        self.runtime.streamWaitEvent(self.stream.ptr, self._given)

    def lead(self, stream: int) -> None:
        """Let `stream` wait for all work queued in this object's stream so far."""
        self.runtime.eventRecord(self._done, self.stream.ptr)
        self.runtime.streamWaitEvent(stream, self._done)

    def say(self, event: int, number: int) -> None:
        """Record one of this rank's events, and let the other hosts know."""
        self.runtime.eventRecord(self.events[self.comm.rank][event], self.stream.ptr)
        write_word(self._words[self.comm.rank] + 8 * event, number)

    def hear(self, rank: int, event: int, number: int, occasion: str) -> None:
        """Let this object's stream wait for another rank's event.

        Raises:
            StallError: that rank's host did not record it in time.
        """
        word = self._words[rank] + 8 * event
        limit_s = STALL_TIMEOUT_S.read()
        if not until(lambda: read_word(word) >= number, limit_s, looks=_LOOKS):
            self.stall([rank], occasion)
        self.runtime.streamWaitEvent(self.stream.ptr, self.events[rank][event])

    def stall(self, late: Sequence[int], occasion: str) -> NoReturn:
        """Raise the error for late ranks.

        Raises:
            StallError: always; names them.
        """
        raise StallError(self._stalled(late, occasion))

    def move(self, moves: Sequence[Move]) -> None:
        """Copy pieces in this object's stream, by one kernel."""
        rows = table(moves)
        if not len(rows):
            return
        each = min(_MOST_BLOCKS, -(-int(rows[:, 2].max()) // _THREADS))
        with self.stream:
            self._move((len(rows) * each,), (_THREADS,), (self._on_gpu(rows), np.int32(each)))

    def reduce(self, kernel: Any, into: int, nbytes: int, offset: int) -> None:
        """Sum `nbytes` at `offset` of all ranks' memory for sums, in this object's stream."""
        order = sorted(self.ranks)
        memory = self._on_gpu(np.array([self.sums[rank] for rank in order], np.uint64))
        # The kernel counts from the beginning of memory, in units of 16 bytes.
        result = self._on_gpu(np.array([into - offset], np.uint64))
        count = -(-nbytes // 16)
        blocks = min(_MOST_BLOCKS, max(1, -(-count // _THREADS)))
        everyone = memory, np.int32(len(order)), result, np.int32(1)
        place = np.uint64(offset // 16), np.uint64(count)
        with self.stream:
            kernel((blocks,), (_THREADS,), (*everyone, *place, np.float32(1)))

    def _on_gpu(self, words: np.ndarray[Any, np.dtype[np.uint64]]) -> Any:
        """Return words in the GPU's memory; usually they are there from the last step."""
        key = words.tobytes()
        found = self._tables.get(key)
        if found is None:
            import cupy

            # In the stream, so that a freed table's memory is reused only after its kernels.
            with self.stream:
                found = self._tables[key] = cupy.asarray(words, dtype=np.uint64)
            if len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return found
