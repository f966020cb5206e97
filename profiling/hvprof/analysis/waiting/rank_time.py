"""Where each rank's time goes: within MPI, outside of it, and without a core."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from hvprof.model import Cell, RankRecording, Recording

# What a message may need on a slow network: more than this is waiting, whatever else is known.
SLOWEST_LATENCY_S, SLOWEST_BYTE_S = 1e-3, 1e-7
_MESSAGES = frozenset({"send", "ssend", "rsend", "bsend", "recv", "mrecv", "sendrecv"})
# These name no bytes: they wait for what others started, or move nothing.
_WAITS = ("wait", "probe", "mprobe", "iprobe", "win_")


@dataclass(frozen=True, slots=True)
class RankTime:
    """A rank's run, from the first call of any rank until all have made their last.

    Attributes:
        run_s: all of it.
        mpi_s: in MPI's calls, and in MPI_Finalize longer than the rank that was there last.
            Per thread, where several threads call MPI.
        busy: threads that were outside of MPI and had or wanted a core, on average; None if
            unknown.
        queued_s: that its threads wanted a core and had none, summed over them.
        file_bytes: read and written, less the payload of its messages.
    """

    rank: int
    host: str
    run_s: float
    mpi_s: float
    busy: float | None = None
    other_threads: float = 0.0
    queued_s: float = 0.0
    file_bytes: float = 0.0

    @property
    def outside_s(self) -> float:
        """Time outside of MPI."""
        return self.run_s - self.mpi_s


def calling_threads(recording: Recording) -> int:
    """Threads of a rank that called MPI, the most of any rank; 1 if unknown."""
    return max((one.usage.calling_threads for one in recording.ranks if one.usage), default=1) or 1


def rank_times(recording: Recording) -> list[RankTime]:
    """The times of the ranks that have ended."""
    usages = [one.usage for one in recording.ranks if one.usage]
    leave_s = min((usage.finalize_s for usage in usages), default=0.0)
    # Starting up and ending are no part of what ranks do with each other, as far as all do it.
    alone_s = min((usage.before_s for usage in usages), default=0.0)
    alone_s += min((usage.after_s for usage in usages), default=0.0)
    threads = calling_threads(recording)
    ended = [rank for rank in recording.ranks if rank.end_unix_s]
    return [_of_rank(rank, leave_s, alone_s, threads) for rank in ended]


def _of_rank(rank: RankRecording, leave_s: float, alone_s: float, threads: int) -> RankTime:
    usage = rank.usage
    run_s = (rank.end_unix_s or 0.0) - rank.start_unix_s
    if usage:
        run_s -= leave_s + alone_s
    run_s = max(run_s, 1e-9)
    calls_s = sum(cell.time_s for cell in rank.cells if cell.traffic == "data")
    at_end_s = max(usage.finalize_s - leave_s, 0.0) if usage else 0.0
    several = threads if usage and usage.calling_threads > 1 else 1
    mpi_s = min(calls_s / several + at_end_s, run_s)
    if usage is None:
        return RankTime(rank.rank, rank.host, run_s, mpi_s)
    active_s = usage.cpu_s + usage.queued_s
    idle_s = max(run_s + alone_s - active_s, 0.0)
    others = max(usage.process_s + usage.process_queued_s - active_s, 0.0) / run_s
    payload = sum(one.message_bytes for one in rank.partners)
    payload += sum(cell.message_bytes for cell in rank.cells)
    return RankTime(
        rank=rank.rank,
        host=rank.host,
        run_s=run_s,
        mpi_s=mpi_s,
        busy=max(run_s - mpi_s - idle_s, 0.0) / run_s + others,
        other_threads=others,
        queued_s=usage.process_queued_s,
        file_bytes=max(usage.file_bytes - 2 * payload, 0),
    )


@dataclass(frozen=True, slots=True)
class OperationCost:
    """Calls of one operation on all ranks, their time as a mean over the ranks.

    Attributes:
        calls: of a rank.
        message_bytes: of a call.
        wait_s: the part of time_s that is waiting, by `estimate` below.
    """

    operation: str
    calls: float
    message_bytes: float
    time_s: float
    wait_s: float


def operation_costs(recording: Recording) -> list[OperationCost]:
    """Data traffic by operation, the longest first.

    Without a trace waiting is estimated: a call waits for as long as it takes more than calls
    of that kind and size take on the rank that is quickest at them, or more than a slow network
    would need for its bytes.
    """
    groups: dict[tuple[str, int], dict[int, list[tuple[str, Cell]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for rank in recording.ranks:
        for cell in rank.cells:
            if cell.traffic == "data":
                family = "message" if cell.operation in _MESSAGES else cell.operation
                groups[family, cell.low_bytes][rank.rank].append((cell.operation, cell))
    ranks = len(recording.ranks)
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    started = _started_bytes(recording)
    for (family, _), of_ranks in groups.items():
        quickest_s = min(_call_s(cells) for cells in _by_operation(of_ranks))
        for rank_number, cells in of_ranks.items():
            for operation, cell in cells:
                most_s = SLOWEST_LATENCY_S + SLOWEST_BYTE_S * cell.message_bytes / cell.calls
                if family.startswith(_WAITS):
                    whole_s = SLOWEST_LATENCY_S * cell.calls
                    most_s = (whole_s + SLOWEST_BYTE_S * started[rank_number]) / cell.calls
                transfer_s = min(cell.time_s, cell.calls * min(quickest_s, most_s))
                sums = found[operation]
                sums[0] += cell.calls / ranks
                sums[1] += cell.message_bytes / ranks
                sums[2] += cell.time_s / ranks
                sums[3] += (cell.time_s - transfer_s) / ranks
    costs = [
        OperationCost(name, calls, total / calls, time_s, wait_s)
        for name, (calls, total, time_s, wait_s) in found.items()
    ]
    return sorted(costs, key=lambda cost: -cost.time_s)


def _by_operation(of_ranks: dict[int, list[tuple[str, Cell]]]) -> Iterator[list[Cell]]:
    """The cells of each rank and operation: a late sender's receivers wait, and it does not."""
    for cells in of_ranks.values():
        for name in {operation for operation, _ in cells}:
            yield [cell for operation, cell in cells if operation == name]


def _call_s(cells: list[Cell]) -> float:
    return sum(cell.time_s for cell in cells) / sum(cell.calls for cell in cells)


def _started_bytes(recording: Recording) -> dict[int, float]:
    """Bytes that each rank sent and received in messages."""
    return {
        rank.rank: float(sum(one.message_bytes for one in rank.partners))
        for rank in recording.ranks
    }
