"""Samples that a group of ranks shares: one rank reads each byte, however the samples are cut.

A MiB of a record is checked as a whole, and a cut along the width gives every rank a part of each
MiB. So one of the ranks that need a part of a MiB reads it, and sends the other ranks theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvd_ext.data.agreed import require_threads
from hvd_ext.data.packed import layout
from hvd_ext.data.packed.boxes import Box, boxes_in_blocks
from hvd_ext.data.packed.packed import PackedField
from hvd_ext.data.staging.rounds import readers
from hvd_ext.data.store.exchange import Bytes, RecordExchange
from hvd_ext.errors import HvdExtError, UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

# For each field, the boxes that one rank reads and another one needs.
Parts = list[list[Box]]


class GroupReader:
    """Reads this rank's boxes of samples, together with the others of its group.

    All ranks of the group must read the same samples, begun in the same order; any thread may.
    """

    def __init__(self, fields: Sequence[PackedField], boxes: Sequence[Box], comm: MPI.Comm) -> None:
        """Plan which rank reads and sends which boxes. A collective.

        Args:
            fields: fields of one packed file.
            boxes: for each field, the box that this rank needs of every sample.
            comm: the ranks that share each sample.

        Raises:
            HvdExtError: MPI cannot be used on threads, or has too few tags for the samples.
        """
        from mpi4py import MPI

        require_threads(comm, "reading samples together")
        most = int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 0)
        self._file = fields[0].file
        if len(self._file) > most:
            raise UsageError(
                f"{self._file.path} has {len(self._file)} samples, and this MPI's tags end at "
                f"{most}: give each rank whole samples"
            )
        self._fields, self._boxes = fields, boxes
        everyones: list[Sequence[Box]] = comm.allgather(boxes)
        ends = [field.begin + field.field.count_bytes for field in fields]
        needs = np.zeros((comm.size, layout.blocks(max(ends))), bool)
        for row, own in zip(needs, everyones, strict=True):
            for field, box in zip(fields, own, strict=True):
                touched = layout.touched(field.field, field.begin, box)
                row[: touched.size] |= touched
        by = readers(needs)

        def parts(reader: int, user: int) -> Parts:
            return [
                boxes_in_blocks(field.field, field.begin, by == reader, box)
                for field, box in zip(fields, everyones[user], strict=True)
            ]

        me = comm.rank
        others = [rank for rank in range(comm.size) if rank != me]
        self._reads = by == me
        self._own = parts(me, me)
        self._to = {user: found for user in others if any(found := parts(me, user))}
        self._from = {reader: found for reader in others if any(found := parts(reader, me))}
        self._exchange = RecordExchange(comm)

    def read(self, sample: int) -> list[NDArray[Any]]:
        """Read this rank's box of each field of a sample, together with the other ranks.

        Args:
            sample: number of the sample, the same on all ranks.

        Returns:
            An array for each field.

        Raises:
            UsageError: a part of this rank's box is damaged or cannot be read, by this rank or
                by the one that reads it for this one.
            StallError: a rank did not send its part.
        """
        coming = {
            peer: self._exchange.receive(np.empty(self._part_bytes(parts), np.uint8), peer, sample)
            for peer, parts in self._from.items()
        }
        try:
            record = self._file.record(sample, self._reads)
        except HvdExtError as error:
            for peer, parts in self._to.items():
                self._send(error, parts, peer, sample)
            raise
        whole = [field.of(record) for field in self._fields]
        for peer, parts in self._to.items():
            cut = (
                np.ascontiguousarray(array[_index(box)]).reshape(-1).view(np.uint8)
                for array, boxes in zip(whole, parts, strict=True)
                for box in boxes
            )
            self._send(np.concatenate(list(cut)), parts, peer, sample)
        mine = [
            np.empty([end - first for first, end in box], field.dtype)
            for field, box in zip(self._fields, self._boxes, strict=True)
        ]
        for array, part, origin, boxes in zip(whole, mine, self._boxes, self._own, strict=True):
            for box in boxes:
                part[_index(box, origin)] = array[_index(box)]
        self._put(mine, {peer: data.result() for peer, data in coming.items()})
        return mine

    def close(self) -> None:
        """Wait for unfinished transfers, and end. A collective."""
        self._exchange.close()

    def _send(self, data: Bytes | HvdExtError, parts: Parts, peer: int, sample: int) -> None:
        sent: Future[Bytes] = Future()
        if isinstance(data, HvdExtError):
            sent.set_exception(data)
        else:
            sent.set_result(data)
        self._exchange.send(sent, self._part_bytes(parts), peer, sample)

    def _put(self, mine: list[NDArray[Any]], received: Mapping[int, Bytes]) -> None:
        for peer, data in received.items():
            at = 0
            for part, origin, boxes in zip(mine, self._boxes, self._from[peer], strict=True):
                for box in boxes:
                    place = part[_index(box, origin)]
                    values = data[at : at + place.nbytes].view(part.dtype)
                    place[...] = values.reshape(place.shape)
                    at += place.nbytes

    def _part_bytes(self, parts: Parts) -> int:
        return sum(
            prod(end - first for first, end in box) * field.dtype.itemsize
            for field, boxes in zip(self._fields, parts, strict=True)
            for box in boxes
        )


def _index(box: Box, origin: Box | None = None) -> tuple[slice, ...]:
    """Return the slices of a box in an array, or in another box."""
    begins = [first for first, _ in origin] if origin else [0] * len(box)
    return tuple(slice(a - o, b - o) for (a, b), o in zip(box, begins, strict=True))
