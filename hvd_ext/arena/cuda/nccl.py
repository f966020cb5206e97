"""NCCL, as far as an arena on GPUs needs it: the sum of float32 over a node, or between nodes.

It is called by ctypes, in the library that PyTorch has loaded or that is installed; functions and
numbers are those of NCCL's headers. CuPy's wheels come without NCCL.

A communicator stays until the process ends, because making one takes a second. NCCL's kernels wait
for each other while they run, so ranks that share a GPU need NCCL_MULTI_RANK_GPU_ENABLE=1 (2.30 and
newer), and are slow without MPS.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from hvd_ext.arena.cuda.ipc import or_window_error
from hvd_ext.shm.regions import WindowError, on_every_rank

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology

_FLOAT32, _SUM = 7, 0  # ncclFloat32, ncclSum
_ID_BYTES = 128
_OCCASION = "NCCL's start"

Key = tuple[int, tuple[int, ...]]
_communicators: dict[Key, Communicator] = {}
_refusals: dict[Key, str] = {}


class _Id(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", ctypes.c_char * _ID_BYTES),)


class Communicator:
    """Ranks that sum over NCCL, each with one GPU."""

    def __init__(self, topology: Topology, device: int, timeout_s: float) -> None:
        """Start NCCL; collective over the world.

        On one node all ranks sum together; on several, those with the same local rank (a rail).

        Raises:
            WindowError: on every rank, if it cannot be used on some.
            StallError: ranks did not reach this in time; names them.
        """
        self._nccl = on_every_rank(topology, _load)
        group = topology.node if topology.one_node else topology.cross
        own = on_every_rank(topology, lambda: self._id() if group.rank == 0 else b"")
        topology.allgather(0, timeout_s, _OCCASION)
        first = group.bcast(own)
        self._comm = ctypes.c_void_p()

        def join() -> None:
            with or_window_error(f"NCCL on GPU {device}"):
                import cupy

                with cupy.cuda.Device(device):
                    of = group.size, _Id.from_buffer_copy(first), group.rank
                    self._check(self._nccl.ncclCommInitRank(ctypes.byref(self._comm), *of))

        on_every_rank(topology, join)

    def sum(self, address: int, count: int, stream: int) -> None:
        """Queue the sum, in place, of `count` float32 at an address on this rank's GPU.

        Raises:
            WindowError: NCCL refuses it.
        """
        place = ctypes.c_void_p(address)
        number, where = ctypes.c_size_t(count), ctypes.c_void_p(stream)
        self._check(
            self._nccl.ncclAllReduce(place, place, number, _FLOAT32, _SUM, self._comm, where)
        )

    def _id(self) -> bytes:
        made = _Id()
        self._check(self._nccl.ncclGetUniqueId(ctypes.byref(made)))
        return ctypes.string_at(ctypes.addressof(made), _ID_BYTES)

    def _check(self, code: int) -> None:
        if code:
            raise WindowError(f"NCCL: {self._nccl.ncclGetErrorString(code).decode()}")


def communicator(topology: Topology, device: int, timeout_s: float) -> Communicator | None:
    """Return these ranks' communicator, made once; None if NCCL cannot be used; collective."""
    key = device, tuple(topology.ranks)
    if all(topology.allgather(key in _communicators, timeout_s, _OCCASION)):
        return _communicators[key]
    if any(topology.allgather(key in _refusals, timeout_s, _OCCASION)):
        _refusals.setdefault(key, "it could not be used on another rank")
        return None
    try:
        _communicators[key] = Communicator(topology, device, timeout_s)
    except WindowError as error:  # on every rank alike
        _refusals[key] = str(error)
        return None
    return _communicators[key]


def refuse(topology: Topology, device: int, reason: str) -> None:
    """Stop using NCCL; to be called on all of these ranks."""
    key = device, tuple(topology.ranks)
    _communicators.pop(key, None)
    _refusals[key] = reason


def refusal(topology: Topology, device: int) -> str:
    """Why NCCL cannot be used by these ranks; empty if it can, or was not tried."""
    return _refusals.get((device, tuple(topology.ranks)), "")


def _load() -> Any:
    """The library.

    Raises:
        WindowError: there is none.
    """
    with or_window_error("NCCL"):
        library = ctypes.CDLL("libnccl.so.2")  # PyTorch's, if that was loaded
        library.ncclGetErrorString.restype = ctypes.c_char_p
        library.ncclCommInitRank.argtypes = (
            *(ctypes.c_void_p, ctypes.c_int),
            *(_Id, ctypes.c_int),
        )
        return library
