"""The time of each rank: within MPI, outside of it, and without a core."""

from __future__ import annotations

from dataclasses import dataclass

from hvprof.model import RankRecording, Recording


@dataclass(frozen=True, slots=True)
class RankTime:
    """A rank's run, from the first call of any rank until all have made their last.

    Attributes:
        run_s: total time.
        mpi_s: time in MPI's calls, and in MPI_Finalize beyond that of the last rank there; per
            thread, if several threads call MPI.
        busy: average number of threads that were outside of MPI and had or needed a core; None if
            unknown.
        queued_s: time that its threads waited for a core, summed over them.
        main_queued_s: the same of its first thread.
        own_s: time outside of MPI, without waiting for a core.
        cpu_s: time that its threads were on cores.
        file_bytes: bytes read and written, less the payload of its messages.
    """

    rank: int
    host: str
    run_s: float
    mpi_s: float
    busy: float | None = None
    other_threads: float = 0.0
    queued_s: float = 0.0
    file_bytes: float = 0.0
    main_queued_s: float = 0.0
    own_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def outside_s(self) -> float:
        """Return the time outside of MPI."""
        return self.run_s - self.mpi_s


def calling_threads(recording: Recording) -> int:
    """Return the largest number of threads of a rank that called MPI; 1 if unknown."""
    return max((one.usage.calling_threads for one in recording.ranks if one.usage), default=1) or 1


def rank_times(recording: Recording) -> list[RankTime]:
    """Return the times of the ranks; a killed rank's time ends at its last sign of life."""
    usages = [one.usage for one in recording.ranks if one.usage]
    leave_s = min((usage.finalize_s for usage in usages), default=0.0)
    # The start and the end that all ranks need are not part of their communication.
    alone_s = min((usage.before_s for usage in usages), default=0.0)
    alone_s += min((usage.after_s for usage in usages), default=0.0)
    threads = calling_threads(recording)
    known = [rank for rank in recording.ranks if rank.until_unix_s]
    return [_of_rank(rank, leave_s, alone_s, threads) for rank in known]


def _of_rank(rank: RankRecording, leave_s: float, alone_s: float, threads: int) -> RankTime:
    usage = rank.usage
    run_s = (rank.until_unix_s or 0.0) - rank.start_unix_s
    if usage:
        run_s -= leave_s + alone_s
    run_s = max(run_s, 1e-9)
    calls_s = sum(cell.time_s for cell in rank.cells if cell.traffic == "data")
    at_end_s = max(usage.finalize_s - leave_s, 0.0) if usage else 0.0
    several = threads if usage and usage.calling_threads > 1 else 1
    mpi_s = min(calls_s / several + at_end_s + rank.open_s, run_s)
    if usage is None:
        return RankTime(rank.rank, rank.host, run_s, mpi_s, own_s=run_s - mpi_s)
    active_s = usage.cpu_s + usage.queued_s
    idle_s = max(run_s + alone_s - active_s, 0.0)
    others = max(usage.process_s + usage.process_queued_s - active_s, 0.0) / run_s
    outside_s = max(run_s - mpi_s - idle_s, 0.0)
    # A thread is as often without a core within MPI as outside of it, if it does not yield there.
    queued_s = min(usage.queued_s, run_s)
    queued_outside_s = outside_s * queued_s / active_s if active_s else 0.0
    if rank.yields:
        queued_outside_s = min(max(queued_s - mpi_s, 0.0), outside_s)
    payload = sum(one.message_bytes for one in rank.partners)
    payload += sum(cell.message_bytes for cell in rank.cells)
    return RankTime(
        rank=rank.rank,
        host=rank.host,
        run_s=run_s,
        mpi_s=mpi_s,
        busy=outside_s / run_s + others,
        other_threads=others,
        queued_s=usage.process_queued_s,
        file_bytes=max(usage.file_bytes - 2 * payload, 0),
        main_queued_s=queued_s,
        own_s=run_s - mpi_s - queued_outside_s,
        cpu_s=usage.process_s,
    )
