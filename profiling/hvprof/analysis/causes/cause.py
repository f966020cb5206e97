"""The cost of a run's communication, and its cause."""

from __future__ import annotations

from dataclasses import dataclass

from hvprof.analysis.causes.cores import Shortage
from hvprof.analysis.causes.kinds import Kind
from hvprof.analysis.causes.unfinished import Went
from hvprof.analysis.conditions import Condition
from hvprof.analysis.waiting.call_costs import OperationCost


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
        host: that of the ranks waited for, if it matters.
        shortage: of cores; None where there is none.
        condition: of machines that explains the kind; None for another kind.
        last_call, last_call_s: the operation that the others were in at last, and for how long, of
            kind "last call".
        went: what the ranks waited for did then.
        threads_in_mpi: threads of a rank that call MPI.
        files_bytes: read and written by the ranks waited for, of kind "files".
        chain: ranks that each wait mostly for the next one; at least three, or empty.
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
    shortage: Shortage | None = None
    condition: Condition | None = None
    last_call: str = ""
    last_call_s: float = 0.0
    went: Went = Went.OUTSIDE
    threads_in_mpi: int = 1
    files_bytes: float = 0.0
    chain: tuple[int, ...] = ()
