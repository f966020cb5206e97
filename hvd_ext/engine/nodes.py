"""The ranks of each node of a group, and each node's rank that serves a rank of another node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvd_ext.errors import UsageError


@dataclass(frozen=True, slots=True)
class Nodes:
    """A group's ranks by node. Pure.

    Nodes may have different numbers of ranks, and a node's ranks need not be consecutive.

    Attributes:
        of_rank: the node of each rank.
        ranks: each node's ranks, ascending.
    """

    of_rank: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, marks: Sequence[int]) -> Nodes:
        """Number the nodes by their first ranks.

        Args:
            marks: a mark for each rank, the same for ranks of one node and different for others.

        Raises:
            UsageError: there are no ranks.
        """
        if not marks:
            raise UsageError("no ranks: a group has at least one")
        numbers = {mark: number for number, mark in enumerate(dict.fromkeys(marks))}
        of_rank = tuple(numbers[mark] for mark in marks)
        ranks: list[list[int]] = [[] for _ in numbers]
        for rank, node in enumerate(of_rank):
            ranks[node].append(rank)
        return cls(of_rank, tuple(map(tuple, ranks)))

    @property
    def count(self) -> int:
        """Return the number of nodes."""
        return len(self.ranks)

    @property
    def rails(self) -> int:
        """Return the ranks of the smallest node: that many exchange between the nodes at once."""
        return min(map(len, self.ranks))

    def local_rank(self, rank: int) -> int:
        """Return the number of a rank among those of its node."""
        return self.ranks[self.of_rank[rank]].index(rank)

    def relay(self, rank: int, node: int) -> int:
        """Return the rank of `node` that sends to `rank`, and receives from it, for all of `node`.

        For a rank of the node it is that rank itself. A node's ranks share the work evenly.
        """
        theirs = self.ranks[node]
        return theirs[self.local_rank(rank) % len(theirs)]

    def relayed_by(self, rank: int) -> tuple[int, ...]:
        """Return the ranks for which `rank` is its node's relay: itself, and others elsewhere."""
        node = self.of_rank[rank]
        return tuple(r for r in range(len(self.of_rank)) if self.relay(r, node) == rank)

    @property
    def most_relayed(self) -> int:
        """Return the largest number of ranks that one rank relays for, itself included."""
        return max(
            1 + sum(-(-len(theirs) // len(ranks)) for theirs in self.ranks if theirs is not ranks)
            for ranks in self.ranks
        )

    def rail(self, number: int) -> tuple[int, ...]:
        """Return the ranks with this local rank: one of each node that has that many ranks."""
        return tuple(sorted(ranks[number] for ranks in self.ranks if number < len(ranks)))
