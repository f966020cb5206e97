"""How much memory a store may take."""

from __future__ import annotations

from hvd_ext.data.plan import SHARE_OF_FREE
from hvd_ext.system.node_memory import free_bytes


def rank_budget(local_size: int) -> int:
    """The bytes that a rank may keep by default: a share of the free memory of its node.

    Args:
        local_size: ranks on the node.
    """
    return int(SHARE_OF_FREE * free_bytes()) // local_size
