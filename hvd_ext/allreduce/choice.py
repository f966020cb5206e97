"""The algorithm of a message: one decision, made from facts that are equal on all ranks.

The size of its node, or whether it shares memory with others, may differ between ranks. If
ranks chose by these, they could choose differently and wait for each other forever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvd_ext.allreduce.algorithms import NATIVE, SHARED_MEMORY

if TYPE_CHECKING:
    from hvd_ext.allreduce.table import Table
    from hvd_ext.job.topology import Topology


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that take part, as each of them sees the group.

    Attributes:
        nodes: nodes of the group.
        ranks_per_node: those of its largest node.
        shares_memory: all of its ranks may reduce in memory that they share.
    """

    nodes: int
    ranks_per_node: int
    shares_memory: bool = False

    @classmethod
    def of_all(cls, topology: Topology, *, may_share: bool = False) -> Group:
        """Return the group of all ranks; with `may_share`, those of one node may set up memory."""
        shares = may_share and topology.one_node
        return cls(topology.nodes, topology.largest_node, shares)

    @classmethod
    def between(cls, nodes: int) -> Group:
        """One rank of each node."""
        return cls(nodes, 1)


def choose(
    table: Table, group: Group, message_bytes: int, dtype_class: str, memory: str = "host"
) -> str:
    """The algorithm that a table names, or native where it names memory that is not shared.

    Args:
        table: the same on every rank.
        group: the group whose message it is.
        message_bytes: payload of a rank; the longest one if they differ.
        dtype_class: class of its elements, as in the table's rows.
        memory: kind of memory, as in the table's rows.
    """
    name = table.choose(group.nodes, group.ranks_per_node, memory, message_bytes, dtype_class)
    return NATIVE if name == SHARED_MEMORY and not group.shares_memory else name


def explain(table: Table, group: Group, message_bytes: int, dtype_class: str) -> str:
    """Return the reason for the choice, for a message in any memory of the host."""
    return table.explain(group.nodes, group.ranks_per_node, "host", message_bytes, dtype_class)
