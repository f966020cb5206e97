"""The collectives of each contender, by the same names, with the result that each must give."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier")


@dataclass(frozen=True)
class Buffers:
    """The memory of one case of a collective: float32, 1-D.

    Attributes:
        own: what this rank gives.
        out: what it gets; `own` itself where a collective works in place.
    """

    own: Array
    out: Array


def buffers(collective: str, message_bytes: int, size: int) -> Buffers:
    """Memory for a case.

    Args:
        collective: one of COLLECTIVES.
        message_bytes: of an all_gather what each rank gives, else of the whole on one rank.
        size: number of ranks.
    """
    count = message_bytes // 4
    own = np.zeros(count, np.float32)
    if collective == "all_gather":
        return Buffers(own, np.zeros(count * size, np.float32))
    if collective == "reduce_scatter":
        return Buffers(own, np.zeros(count // size, np.float32))
    if collective == "all_to_all":
        return Buffers(own, np.zeros(count, np.float32))
    return Buffers(own, own)


def fill(collective: str, given: Buffers, rank: int) -> None:
    """Give each rank other numbers, small whole ones, which sum without rounding."""
    given.own[:] = _numbers(len(given.own), rank)


def expected(collective: str, given: Buffers, rank: int, size: int) -> Array:
    """The numbers that `out` must hold after the collective."""
    count = len(given.own)
    every = [_numbers(count, other) for other in range(size)]
    if collective == "all_reduce":
        return np.sum(every, axis=0)
    if collective == "reduce_scatter":
        return np.sum(every, axis=0).reshape(size, -1)[rank]
    if collective == "all_gather":
        return np.concatenate(every)
    if collective == "all_to_all":
        return np.concatenate([numbers.reshape(size, -1)[rank] for numbers in every])
    return every[0]


def _numbers(count: int, rank: int) -> Array:
    return ((np.arange(count) * 7 + rank * 3) % 11).astype(np.float32)


def of_torch(group: Any, collective: str, given: Buffers) -> Callable[[], None]:
    """A call through torch.distributed.

    Args:
        group: whose backend is measured.
        collective: one of COLLECTIVES.
        given: its memory.
    """
    import torch
    import torch.distributed as dist

    own, out = torch.from_numpy(given.own), torch.from_numpy(given.out)
    size = dist.get_world_size(group)
    rows = list(out.chunk(size)) if collective == "all_gather" else []
    is_gloo = dist.get_backend(group) == "gloo"
    if collective == "reduce_scatter" and is_gloo:
        parts = list(own.chunk(size))
        return lambda: dist.reduce_scatter(out, parts, group=group)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(own, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(out, own, group=group),
        "all_gather": (
            (lambda: dist.all_gather(rows, own, group=group))
            if is_gloo
            else (lambda: dist.all_gather_into_tensor(out, own, group=group))
        ),
        "broadcast": lambda: dist.broadcast(own, 0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(out, own, group=group),
        "barrier": lambda: dist.barrier(group=group),
    }
    return calls[collective]


def of_engine(carrier: Any, collective: str, given: Buffers) -> Callable[[], None]:
    """A call of hvd_ext's engine, on the memory of numpy's arrays."""
    from hvd_ext.shm.block import Block

    own, out = Block.of(given.own), Block.of(given.out)
    owns: list[Block] = []
    outs: list[Block] = []
    if collective == "all_to_all":
        part = own.count_bytes // carrier.size
        owns, outs = (
            [block.part(rank * part, part) for rank in range(carrier.size)] for block in (own, out)
        )
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: carrier.all_reduce(own, "float32", "sum", 1.0),
        "reduce_scatter": lambda: carrier.reduce_scatter(out, own, "float32", 1.0, "sum"),
        "all_gather": lambda: carrier.all_gather(out, own),
        "broadcast": lambda: carrier.broadcast(own, 0),
        "all_to_all": lambda: carrier.all_to_all(outs, owns),
        "barrier": lambda: carrier.barrier(),
    }
    return calls[collective]


def of_mpi(comm: Any, collective: str, given: Buffers) -> Callable[[], None]:
    """The MPI library's own collective, through mpi4py."""
    from mpi4py import MPI

    own, out = given.own, given.out
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: comm.Allreduce(MPI.IN_PLACE, own, MPI.SUM),
        "reduce_scatter": lambda: comm.Reduce_scatter_block(own, out, MPI.SUM),
        "all_gather": lambda: comm.Allgather(own, out),
        "broadcast": lambda: comm.Bcast(own, 0),
        "all_to_all": lambda: comm.Alltoall(own, out),
        "barrier": lambda: comm.Barrier(),
    }
    return calls[collective]


class Ucc:
    """UCC's collectives among all ranks."""

    def __init__(self, library: Path, rank: int, size: int) -> None:
        self._c = ctypes.CDLL(str(library))
        self._c.make_call.restype = ctypes.c_void_p
        self._c.make_team(rank, size)
        self._last: ctypes.c_void_p | None = None

    def call(self, collective: str, given: Buffers) -> Callable[[], None]:
        """As of_mpi; the call before this one is not to be made any more."""
        sides = [
            word(value)
            for array in (given.own, given.out)
            for word, value in ((ctypes.c_void_p, array.ctypes.data), (ctypes.c_size_t, array.size))
        ]
        if self._last is not None:
            self._c.end_call(self._last)
        request = ctypes.c_void_p(self._c.make_call(COLLECTIVES.index(collective), *sides))
        self._last = request
        run = self._c.run_call

        def call(memory: Buffers = given) -> None:
            run(request)

        return call
