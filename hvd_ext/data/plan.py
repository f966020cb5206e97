"""Memory and reads of a data set on a number of nodes, and the best way to read it; pure."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_ext.units import counted, format_bytes

SHARE_OF_FREE = 0.6  # the rest is for training, and for the kernel's page cache


@dataclass(frozen=True)
class ReadingPlan:
    """The bytes of a node, and a recommendation.

    Attributes:
        use: "packed", "store", "staging" or "store and file".
        why: the reason in words.
        set_bytes: bytes of all samples.
        store_bytes: bytes that a node keeps in a store; samples that do not fit stay in the file.
        sent_bytes: bytes that a node receives from others in an epoch; it sends as many.
        read_bytes: bytes that all nodes together read from the file in each epoch but the first.
        disk_bytes: bytes of a staged copy.
    """

    use: str
    why: str
    set_bytes: int
    store_bytes: int
    sent_bytes: int
    read_bytes: int
    disk_bytes: int


def reading_plan(
    set_bytes: int, file_bytes: int, nodes: int, memory_bytes: int, disk_bytes: int
) -> ReadingPlan:
    """Choose a way to read.

    Args:
        set_bytes: bytes of all samples.
        file_bytes: bytes of the packed file.
        nodes: number of nodes of the job.
        memory_bytes: free memory of a node.
        disk_bytes: free space of a node's own disk; 0: it has none.
    """
    budget = int(SHARE_OF_FREE * memory_bytes)
    kept = min(set_bytes, nodes * budget)
    left = set_bytes - kept
    of_memory = f"{SHARE_OF_FREE:.0%} of a node's free memory, {format_bytes(budget)}"
    if set_bytes <= budget:
        use, left = "packed", 0
        why = f"the set fits {of_memory}: its page cache has it from the second epoch on"
    elif not left:
        use = "store"
        why = f"the set fits {of_memory}, on {counted(nodes, 'node')}: --store memory"
    elif file_bytes <= disk_bytes:
        use, left = "staging", 0
        why = "the set fits a node's disk, and not the memory of all: --stage-to DIR"
    else:
        use = "store and file"
        why = f"the set fits nowhere: --store memory keeps {kept / set_bytes:.0%}, --prefetch hides"
    return ReadingPlan(
        use,
        why,
        set_bytes,
        store_bytes=kept // nodes,
        sent_bytes=kept * (nodes - 1) // nodes**2,
        read_bytes=left,
        disk_bytes=file_bytes,
    )
