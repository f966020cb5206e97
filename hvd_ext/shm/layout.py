"""Cache lines, between which memory that several ranks write to may be divided. Pure."""

from __future__ import annotations

# A tensor starts on a cache line: vector loads stay aligned, and no two ranks ever
# write to the same line.
LINE_BYTES = 64


def align_up(count_bytes: int) -> int:
    """Round up to whole cache lines."""
    return -(-count_bytes // LINE_BYTES) * LINE_BYTES


def shard(count: int, size: int, rank: int, item_bytes: int) -> tuple[int, int]:
    """Return the elements [begin, end) of a message that `rank` of `size` reduces.

    Shards differ by at most one cache line, and no two ranks share a line.
    """
    line = LINE_BYTES // item_bytes
    lines = -(-count // line)
    return (
        min(count, lines * rank // size * line),
        min(count, lines * (rank + 1) // size * line),
    )
