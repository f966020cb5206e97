"""The kinds of cause, and what is said of one."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from hvprof.analysis.waiting.rank_time import OperationCost


class Kind(str, enum.Enum):
    """Kinds of cause, in the order in which they are tried."""

    RANKS_SHARE_CORES = "ranks share cores"
    THREADS_SHARE_CORES = "threads share cores"
    # Communication is a small part of the run.
    LIGHT = "light"
    # Ranks work one after another.
    SERIAL = "serial"
    # A few ranks wait, most of them never do.
    SPARE_RANK = "spare rank"
    # Ranks that are waited for, and how.
    FILES = "files"
    HOST = "host"
    LATE_SENDER = "late sender"
    LATE_RECEIVER = "late receiver"
    LATE_RANK = "late rank"
    # Ranks wait for a different one each time.
    TURNS = "turns"
    # All are there, and calls or bytes take the time.
    SMALL_MESSAGES = "small messages"
    TRANSFER = "transfer"


@dataclass(frozen=True, slots=True)
class Cause:
    """Cost of a run's communication, and its cause.

    Attributes:
        ranks: that are waited for; empty where nobody is.
        run_s, mpi_s: means over the ranks; mpi_s is per thread.
        low_percent, high_percent: share in MPI of the ranks with the least and the most.
        late_s, others_s: outside of MPI, of the ranks waited for and of the others.
        largest: the operation that takes longest.
        wait_s, time_s: of all operations, as a mean over the ranks: estimated waiting, and all.
        host: the ranks' or the crowded one, if it matters.
        here, cores, threads: ranks of the crowded host, its cores, and its threads that want one.
        threads_in_mpi: threads of a rank that call MPI.
        files_bytes: read and written by the ranks waited for, of kind "files".
        chain: ranks, each of which mostly waits for the next; fewer than three are none.
    """

    kind: Kind
    ranks: tuple[int, ...]
    run_s: float
    mpi_s: float
    low_percent: float
    high_percent: float
    late_s: float
    others_s: float
    largest: OperationCost
    wait_s: float
    time_s: float
    host: str = ""
    here: int = 0
    cores: int = 0
    threads: float = 0.0
    threads_in_mpi: int = 1
    files_bytes: float = 0.0
    chain: tuple[int, ...] = ()


def ranks_text(ranks: Sequence[int]) -> str:
    """'rank 3', 'ranks 1 and 2' or 'ranks 1, 2, 3, ...'."""
    shown = [str(rank) for rank in ranks[:4]]
    if len(ranks) > len(shown):
        return f"ranks {', '.join(shown)}, ..."
    if len(shown) < 2:
        return f"rank {''.join(shown)}"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
