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
        ranks: late ranks, for which others wait; may be empty.
        run_s, mpi_s: means over the ranks; mpi_s is per thread.
        low_percent, high_percent: share of MPI on the ranks with the least and the most.
        late_s, others_s: time outside of MPI, of the late ranks and of the others.
        largest: the operation that takes longest.
        wait_s, time_s: estimated waiting and total time of all operations, as means over the ranks.
        host: host of the late ranks, if it matters.
        shortage: shortage of cores; None if there is none.
        condition: condition of the machines that explains the kind; None for other kinds.
        last_call, last_call_s: for the kind "last call": the operation of the other ranks at the
            end, and its time.
        went: the state of the late ranks then.
        threads_in_mpi: threads of a rank that call MPI.
        files_bytes: for the kind "files": bytes that the late ranks read and wrote.
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
