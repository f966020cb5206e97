"""The rank that keeps each sample, and the senders and receivers of a step; pure.

The owner of a sample is the rank that needs it first: it reads the sample, keeps it, and gives it
to the ranks that need it later. This follows from the order of samples, so every rank computes the
same owners without communication.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvd_ext.data.order import Order

NO_OWNER = -1
_ALIGNMENT = 64
# Two bytes follow each record: a flag that is set once the record is there, and a byte that is not
# zero if the record could not be read.
_FLAG_BYTES = 2


@dataclass(frozen=True)
class Step:
    """The source of each sample of a step; arrays with an entry per position.

    Attributes:
        samples: numbers of the samples.
        users: the ranks that need them.
        owners: the ranks that keep them, or NO_OWNER.
        read: whether the user reads the sample from the file system, because it is the owner and
            this is the first use, or because there is no owner.
    """

    samples: NDArray[np.int64]
    users: NDArray[np.int64]
    owners: NDArray[np.int64]
    read: NDArray[np.bool_]

    def received(self, rank: int) -> NDArray[np.intp]:
        """Return the entries that a rank receives from their owners."""
        return np.flatnonzero((self.users == rank) & (self.owners != rank) & ~self.read)

    def sent(self, rank: int) -> NDArray[np.intp]:
        """Return the entries that a rank sends to their users."""
        return np.flatnonzero((self.owners == rank) & (self.users != rank))


class Owners:
    """The owner of each sample in a run that begins at some position.

    Attributes:
        owner: owner of each sample, or NO_OWNER if the owner's budget was used up before.
        first_use: position at which each sample is needed first.
        offsets: offset of each sample in its owner's memory, bytes; two more bytes follow the
            sample.
        rank_bytes: bytes that each rank keeps.
    """

    def __init__(
        self,
        order: Order,
        first: int,
        local_batch: int,
        lengths: NDArray[np.int64],
        budgets: NDArray[np.int64],
    ) -> None:
        """Compute the owners.

        Args:
            order: order of the samples.
            first: position at which the run begins.
            local_batch: samples of a rank in a step.
            lengths: bytes of each sample.
            budgets: bytes that each rank may keep.
        """
        self.order, self.local_batch = order, local_batch
        self.ranks = len(budgets)
        self.global_batch = local_batch * self.ranks
        # The rest of an epoch and the next epoch together have all samples.
        positions = np.arange(first, first + 2 * order.samples)
        row = order.between(first, first + 2 * order.samples)
        self.first_use = np.empty(order.samples, np.int64)
        # Backwards: of several positions of a sample the earliest is written last.
        self.first_use[row[::-1]] = positions[::-1]
        owner = (self.first_use - first) % self.global_batch // local_batch

        # In each rank's memory samples lie in the order of their first use.
        placed = np.lexsort((self.first_use, owner))
        room = -(-(lengths[: order.samples][placed] + _FLAG_BYTES) // _ALIGNMENT) * _ALIGNMENT
        ends = np.cumsum(room)
        begins = np.concatenate([[0], ends])[np.searchsorted(owner[placed], np.arange(self.ranks))]
        end_in_rank = ends - begins[owner[placed]]
        fits = end_in_rank <= budgets[owner[placed]]
        self.offsets = np.empty(order.samples, np.int64)
        self.offsets[placed] = end_in_rank - room
        self.rank_bytes = np.zeros(self.ranks, np.int64)
        np.add.at(self.rank_bytes, owner[placed[fits]], room[fits])
        self.owner = np.full(order.samples, NO_OWNER)
        self.owner[placed[fits]] = owner[placed[fits]]

    def step(self, first: int) -> Step:
        """Return the sources of the samples of the step at position `first`."""
        positions = np.arange(first, first + self.global_batch)
        samples = self.order.between(first, first + self.global_batch)
        owners = self.owner[samples]
        read = (owners == NO_OWNER) | (self.first_use[samples] == positions)
        users = (positions - first) // self.local_batch
        return Step(samples, users, owners, read)
