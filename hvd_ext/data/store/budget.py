"""The memory that a store may use."""

from __future__ import annotations

from hvd_ext.data.plan import SHARE_OF_FREE
from hvd_ext.system.node_memory import free_bytes


def rank_budget(local_size: int) -> int:
    """Return the bytes that a rank may keep by default: a share of its node's free memory.

    Args:
        local_size: number of ranks on the node.
    """
    return int(SHARE_OF_FREE * free_bytes()) // local_size
