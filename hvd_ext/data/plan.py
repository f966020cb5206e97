"""Memory and reads of a data set on a number of nodes, and the best way to read it; pure."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_ext.units import counted, format_bytes

SHARE_OF_FREE = 0.6  # the rest is for training, and for what the kernel keeps of files


@dataclass(frozen=True)
class ReadingPlan:
    """Bytes of a node, and what to do.

    Attributes:
        use: "packed", "store", "staging" or "store and file".
        why: in words.
        set_bytes: all samples.
        store_bytes: what a node keeps of them in a store; those that do not fit stay on file.
        sent_bytes: what a node receives from others an epoch, as much as it sends.
        read_bytes: what all nodes together read from the file in each epoch but the first.
        disk_bytes: what a staged copy takes.
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
        set_bytes: all samples.
        file_bytes: the packed file.
        nodes: of the job.
        memory_bytes: that a node has free.
        disk_bytes: that a node's own disk has free; 0: it has none.
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
