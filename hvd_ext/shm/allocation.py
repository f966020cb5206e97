"""Memory for a program's buffers that every rank of a node maps, and the buffers' places in it."""

from __future__ import annotations

import mmap
import secrets
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvd_ext.shm.libc import address
from hvd_ext.shm.regions import CONTROL_BYTES, TOKEN_BYTES, map_regions

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True, eq=False)
class Allocation:
    """A region of each rank of a node, as this rank maps them.

    Attributes:
        token: identifies this allocation; the same on every rank of the node.
        rank: this rank's number in the node.
        begins: addresses of the regions, in rank order.
        count_bytes: length of this rank's region.
        peers: keep the other ranks' regions mapped. Buffers keep this rank's region.
    """

    token: bytes
    rank: int
    begins: tuple[int, ...]
    count_bytes: int
    peers: tuple[memoryview, ...]


@dataclass(frozen=True)
class Place:
    """The place of a buffer: `offset_bytes` from the beginning of each rank's region."""

    allocation: Allocation
    offset_bytes: int

    @property
    def begins(self) -> list[int]:
        """Return the addresses of the ranks' buffers."""
        return [begin + self.offset_bytes for begin in self.allocation.begins]


# Allocations by the mapping of this rank's region, which exists as long as buffers in it do.
_allocations: weakref.WeakKeyDictionary[mmap.mmap, Allocation] = weakref.WeakKeyDictionary()


def allocate(node: MPI.Comm, count_bytes: int) -> memoryview:
    """Allocate this rank's region; collective over `node`.

    A rank's memory is freed with the last buffer in it and the last buffer or plan of a peer.

    Raises:
        WindowError: on every rank of the node alike, with the first reason.
    """
    token = node.bcast(secrets.token_bytes(TOKEN_BYTES))
    regions = map_regions(node, max(count_bytes, CONTROL_BYTES + TOKEN_BYTES))
    own = regions[node.rank]
    own[CONTROL_BYTES : CONTROL_BYTES + TOKEN_BYTES] = bytes(TOKEN_BYTES)
    owner = own.obj
    assert isinstance(owner, mmap.mmap)
    _allocations[owner] = Allocation(
        token,
        node.rank,
        tuple(map(address, regions)),
        own.nbytes,
        tuple(region for rank, region in enumerate(regions) if rank != node.rank),
    )
    return own[:count_bytes]


def find(node: MPI.Comm, begin: int, count_bytes: int) -> Place | None:
    """Find a buffer's place, if it is the same part of an allocation on all ranks; collective.

    Args:
        node: the ranks.
        begin: address of this rank's buffer.
        count_bytes: its length.
    """
    place = _find(node, begin, count_bytes)
    mine = place and (place.allocation.token, place.offset_bytes, count_bytes)
    return place if all(other == mine for other in node.allgather(mine)) else None


def _find(node: MPI.Comm, begin: int, count_bytes: int) -> Place | None:
    for of in list(_allocations.values()):
        offset = begin - of.begins[of.rank]
        if 0 <= offset < offset + count_bytes <= of.count_bytes:
            same_node = (of.rank, len(of.begins)) == (node.rank, node.size)
            return Place(of, offset) if same_node else None
    return None
