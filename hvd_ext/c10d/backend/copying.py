"""The collectives that copy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hvd_ext.c10d.backend.core import GroupCore, collective
from hvd_ext.c10d.backend.tensors import read, write_back
from hvd_ext.c10d.backend.work import Work
from hvd_ext.c10d.torch_internals import untraced
from hvd_ext.errors import UsageError
from hvd_ext.units import counted

if TYPE_CHECKING:
    from hvd_ext.shm.block import Block


class Copying(GroupCore):
    """broadcast, all_gather, gather, scatter and all_to_all, as torch calls them."""

    @collective
    def broadcast(self, tensors: list[Tensor], options: Any) -> Work:
        """Copy the root's tensors to every rank."""
        root = options.rootRank
        writes = [] if root == self._own else tensors

        def do() -> None:
            for tensor in tensors:
                self._broadcast(tensor, root)

        return self._begin("broadcast()", tensors, tensors, do, options, writes=writes, root=root)

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        block = read(tensor)
        self._carrier.broadcast(block, root)
        if root != self._own:  # the root's tensor may be read-only
            write_back(tensor, block)

    @untraced
    def all_gather_single(self, out: Tensor, own: Tensor, options: Any = None) -> Work:
        """Gather every rank's `own` into `out`, in rank order."""
        return self.all_gather_single_coalesced([out], [own], options)

    @collective
    def all_gather_single_coalesced(
        self, outs: list[Tensor], owns: list[Tensor], options: Any = None
    ) -> Work:
        """Do the same for several tensors."""
        name = "all_gather_single()"
        for out, own in zip(outs, owns, strict=True):
            self._check_whole(name, out, own)

        def do() -> None:
            for out, own in zip(outs, owns, strict=True):
                self._gather(out, own)

        return self._begin(name, [*outs, *owns], outs, do, options)

    @collective
    def allgather(self, lists: list[list[Tensor]], owns: list[Tensor], options: Any = None) -> Work:
        """Gather every rank's tensor into each of `lists`, in rank order."""
        name = "all_gather()"
        for parts, own in zip(lists, owns, strict=True):
            self._check_list(name, parts, own)

        def do() -> None:
            for parts, own in zip(lists, owns, strict=True):
                self._gather_list(parts, own)

        every = [tensor for parts in lists for tensor in parts]
        return self._begin(name, [*every, *owns], every, do, options)

    @untraced
    def allgather_coalesced(
        self, lists: list[list[Tensor]], owns: list[Tensor], options: Any = None
    ) -> Work:
        """Do the same for several tensors; `lists[r]` has those of rank r."""
        return self.allgather([list(parts) for parts in zip(*lists, strict=True)], owns, options)

    def _gather(self, out: Tensor, own: Tensor) -> None:
        block = read(out)
        self._carrier.all_gather(block, read(own))
        write_back(out, block)

    def _gather_list(self, parts: Sequence[Tensor], own: Tensor) -> None:
        if len({part.nbytes for part in parts}) == 1:
            rows = [*map(read, parts)]
            self._carrier.all_gather_rows(rows, read(own))
            for part, row in zip(parts, rows, strict=True):
                write_back(part, row)
            return
        parts[self._own].detach().copy_(own.detach().view(parts[self._own].shape))
        for root, part in enumerate(parts):
            self._broadcast(part, root)

    @collective
    def all_to_all_single(
        self,
        out: Tensor,
        own: Tensor,
        out_rows: Sequence[int],
        own_rows: Sequence[int],
        options: Any = None,
    ) -> Work:
        """Send each rank some rows of `own`, and receive each rank's rows into `out`."""
        name = "all_to_all_single()"
        given, taken = self._row_bytes(name, own, own_rows), self._row_bytes(name, out, out_rows)

        def do() -> None:
            block = read(out)
            self._carrier.all_to_all(_cut(block, taken), _cut(read(own), given))
            write_back(out, block)

        return self._begin(name, [out, own], [out], do, options)

    @collective
    def alltoall(self, outs: list[Tensor], owns: list[Tensor], options: Any = None) -> Work:
        """Send each rank one of `owns`, and receive each rank's tensor into `outs`."""
        return self._exchange("all_to_all()", outs, owns, options)

    @collective
    def gather(self, lists: list[list[Tensor]], owns: list[Tensor], options: Any) -> Work:
        """Gather every rank's tensor into the root's list."""
        name, root = "gather()", options.rootRank
        outs = list(lists[0]) if self._own == root else []
        if outs:
            self._check_list(name, outs, owns[0])
        empty = owns[0].new_empty(0)
        given = [owns[0] if rank == root else empty for rank in range(self._count)]
        return self._exchange(name, outs or [empty] * self._count, given, options, root)

    @collective
    def scatter(self, outs: list[Tensor], lists: list[list[Tensor]], options: Any) -> Work:
        """Send each rank its entry of the root's list."""
        name, root = "scatter()", options.rootRank
        owns = list(lists[0]) if self._own == root else []
        if owns:
            self._check_list(name, owns, outs[0])
        empty = outs[0].new_empty(0)
        taken = [outs[0] if rank == root else empty for rank in range(self._count)]
        return self._exchange(name, taken, owns or [empty] * self._count, options, root)

    def _exchange(
        self, name: str, outs: list[Tensor], owns: list[Tensor], options: Any, root: int = -1
    ) -> Work:
        def do() -> None:
            blocks = [*map(read, outs)]
            self._carrier.all_to_all(blocks, [*map(read, owns)])
            for out, block in zip(outs, blocks, strict=True):
                write_back(out, block)

        return self._begin(name, [*outs, *owns], outs, do, options, root=root)

    def _row_bytes(self, name: str, tensor: Tensor, rows: Sequence[int]) -> list[int]:
        """Return the number of bytes of each rank."""
        count = tensor.shape[0] if tensor.dim() else 0
        if not rows and count % self._count == 0:
            rows = [count // self._count] * self._count
        if len(rows) != self._count or sum(rows) != count:
            raise UsageError(
                f"{name} of {counted(count, 'row')} split into {list(rows)}: give {self._count} "
                "numbers of rows that add up to them"
            )
        row = math.prod(tensor.shape[1:]) * tensor.element_size()
        return [number * row for number in rows]


def _cut(block: Block, sizes: Sequence[int]) -> list[Block]:
    """Return the parts of a block, with these numbers of bytes."""
    begins = itertools.accumulate(sizes, initial=0)
    return [block.part(begin, size) for begin, size in zip(begins, sizes, strict=False)]
