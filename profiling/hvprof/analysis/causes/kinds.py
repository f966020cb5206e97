"""The kinds of cause."""

from __future__ import annotations

import enum
from collections.abc import Sequence


class Kind(str, enum.Enum):
    """Kinds of cause, in the order in which they are tried."""

    ONE_RANK = "one rank"
    SHORT = "short run"
    # Ranks that did not finish, in a call that took most of their time.
    LAST_CALL = "last call"
    # Evidence of the machines.
    QUOTA = "quota"
    RANKS_SHARE_CORES = "ranks share cores"
    THREADS_SHARE_CORES = "threads share cores"
    WITHOUT_CORES = "without cores"
    # Communication is a small part of the run.
    LIGHT = "light"
    # Ranks work one after another.
    SERIAL = "serial"
    # A few ranks wait, most of them never do.
    SPARE_RANK = "spare rank"
    # Late ranks, and the way in which others wait for them.
    FILES = "files"
    HOST = "host"
    LATE_SENDER = "late sender"
    LATE_RECEIVER = "late receiver"
    LATE_RANK = "late rank"
    # Late only because their cores are slower.
    SLOW_CORES = "slow cores"
    # Patterns in which ranks wait, and no rank is late.
    APART = "apart"
    PIECES = "pieces"
    PIPELINE = "pipeline"
    SEND_CHAIN = "send chain"
    # Ranks wait for a different one each time.
    TURNS = "turns"
    ROOTS = "roots"
    # No rank is late, and synchronization, calls or bytes take the time.
    BARRIERS = "barriers"
    LINK = "link"
    CALLS = "calls"
    SMALL_MESSAGES = "small messages"
    DERIVED_TYPE = "derived type"
    TRANSFER = "transfer"


def ranks_text(ranks: Sequence[int]) -> str:
    """'rank 3', 'ranks 1 and 2' or 'ranks 1, 2, 3, ...'."""
    shown = [str(rank) for rank in ranks[:4]]
    if len(ranks) > len(shown):
        return f"ranks {', '.join(shown)}, ..."
    if len(shown) < 2:
        return f"rank {''.join(shown)}"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
