"""Data of a recording: a job, its ranks, and the calls of each."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hvprof.machine import Flow, Machine, RunUsage

# Operations that return at once. A loop of them is a wait, and each of its calls is counted.
POLLS = frozenset({"test", "testall", "testany", "testsome", "iprobe", "improbe"})
Histogram = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """The calls of one kind and one size bin on one rank.

    Attributes:
        operation: "allreduce", "bcast", ...; "iallreduce" for a non-blocking one, "wait",
            "waitall" or "waitany" for the call that waits for it.
        algorithm: "native" for the MPI library's own, or what hvd_ext named.
        traffic: "data", "control" (coordination: Horovod's, and hvd_ext's monitored barriers),
            "transport" (messages of hvd_ext below a reduction that it reports itself) or "tuning"
            (exchanges of hvd_ext's measurements).
        source: "mpi" for an intercepted call, "hvd_ext" for one that it reported.
        size: number of ranks of the communicator.
        low_bytes, high_bytes: the bin's smallest and largest message, both included.
        calls: number of calls.
        message_bytes: payload of this rank, summed over the calls.
        time_s: summed over the calls.
        wait_s: the part of it spent in waiting for other ranks to arrive; None if unknown.
        min_s, max_s: the shortest and the longest call.
        datatype: its name in MPI, or "derived 8 B"; "" where there is none to know.
        communicator: the `id` of one of the rank's communicators; "" where there is none.
        histogram: (bucket, calls) for each bucket of times with calls, ascending; see
            `bucket_edges_s`.
        block_calls, blocks_s: seconds of each `block_calls` consecutive calls, in their
            order, at most 32 blocks; the last may hold fewer calls.
        ended, ended_bytes: requests that had ended when calls waited for them, and their payload;
            zeros in recordings of before December 2026.
    """

    operation: str
    algorithm: str
    traffic: str
    source: str
    size: int
    low_bytes: int
    high_bytes: int
    calls: int
    message_bytes: int
    time_s: float
    wait_s: float | None
    min_s: float
    max_s: float
    datatype: str = ""
    communicator: str = ""
    histogram: Histogram = ()
    block_calls: int = 0
    blocks_s: tuple[float, ...] = ()
    ended: int = 0
    ended_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator that a rank used.

    Attributes:
        id: 16 hex digits, the same on all its ranks and in each run of one program.
        size: number of ranks (of the other group, between two groups).
        name: the name that MPI_Comm_set_name gave it.
        ranks: the world ranks in it: "0-511", "0-6:2" (every second) or "0,3,5,...".
        rank: this rank's own number in it.
    """

    id: str
    size: int
    name: str
    ranks: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the program that was named with `hvprof.region`.

    Attributes:
        kind: "compute", "communication", "io" or "other".
        calls: how often it was entered; time_s is the total time, regions within it included.
        histogram, block_calls, blocks_s: see Cell.
    """

    name: str
    kind: str
    calls: int
    time_s: float
    min_s: float
    max_s: float
    histogram: Histogram = ()
    block_calls: int = 0
    blocks_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """The calls of one operation from one place in the program.

    Attributes:
        operation: see Cell; "" for all calls of places that found no room.
        object: path of the executable or library, or of the file of Python whose line called an
            extension module; "" where it is not known.
        offset: offset of the instruction after the call, in an executable or library.
        calls: calls that succeeded; time_s is the sum of their times, max_s the longest.
        line: line in a file of Python; 0 for an executable or library.
    """

    operation: str
    object: str
    offset: int
    calls: int
    time_s: float
    max_s: float
    line: int = 0

    @property
    def key(self) -> tuple[str, int, int]:
        """Its place in the program."""
        return self.object, self.offset, self.line


@dataclass(frozen=True, slots=True)
class Partner:
    """Point-to-point messages of data traffic between a rank and one partner, in one direction.

    Attributes:
        rank: the partner's, of all ranks; -1 for those past the first 256 taken together.
        direction: "to" for messages sent to it, "from" for messages received from it.
        messages, message_bytes: their number and payload.
        blocked_s: how long calls of this rank were blocked on them. A wait for several
            requests counts in equal parts for those it receives from.
    """

    rank: int
    direction: str
    messages: int
    message_bytes: int
    blocked_s: float


@dataclass(frozen=True, slots=True)
class Step:
    """Parts of a step's time on the thread that calls `hvprof.step`; or a sum of steps.

    `time_s` is compute + exposed + io + other. Communication is exposed while this thread
    is blocked on it, and overlapped while other threads communicate and this one does
    something else: `overlapped_s` is not part of `time_s`.

    Attributes:
        index: number of the step, from 0; for a sum, the number of its steps.
        start_s: time since the rank's start.
        cpu_s: time that the thread was on a core, as the kernel counts it.
        queued_s: time that it was ready to run while others had the cores, outside of regions of
            kind "communication" and "io"; None where the kernel does not count it.
        queued_blocked_s: the same, within such regions.
        communicating_s: time that other threads which communicate (called MPI, or reported an
            exchange) were on a core.
        process_s: time that any thread of the process was on a core.
        preemptions: how often the thread lost its core to another.
        page_faults: the thread's page faults.
    """

    index: int
    start_s: float
    time_s: float
    compute_s: float
    exposed_s: float
    overlapped_s: float
    io_s: float
    other_s: float
    cpu_s: float = 0.0
    queued_s: float | None = None
    queued_blocked_s: float = 0.0
    communicating_s: float = 0.0
    process_s: float = 0.0
    preemptions: float = 0
    page_faults: float = 0

    def mean(self) -> Step:
        """The mean step of a sum of steps."""
        sums = {name: getattr(self, name) for name in _SUMMED}
        known: dict[str, Any] = {k: v / self.index for k, v in sums.items() if v is not None}
        return replace(self, start_s=0.0, **known)

    @property
    def all_queued_s(self) -> float:
        """Time in which the thread waited for a core; 0 where that is not known."""
        return (self.queued_s or 0.0) + self.queued_blocked_s

    @property
    def overlap_percent(self) -> float | None:
        """Share of the communication that was hidden; None where there was none."""
        communication_s = self.overlapped_s + self.exposed_s
        return 100 * self.overlapped_s / communication_s if communication_s else None


_SUMMED = tuple(one.name for one in fields(Step) if one.name not in ("index", "start_s"))


def _mean(values: list[Any]) -> Any:
    """The mean over all ranks; None if a rank does not know it."""
    return None if None in values else sum(values) / len(values)


@dataclass(frozen=True, slots=True)
class RegistrationCache:
    """How often memory that is sent was found registered already, as `source` reports it."""

    source: str
    hits: int
    misses: int


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """Rank 0's monotonic clock less this rank's at `at_s`, and how far that may be off."""

    at_s: float
    offset_s: float
    error_s: float


@dataclass(frozen=True, slots=True)
class RankRecording:
    """Recording of one rank.

    Attributes:
        rank, size: its number, and the number of ranks of the job.
        host, pid: its host and process.
        state: "finalized" (called MPI_Finalize), "exited" (ended without it) or
            "unfinished" (was killed, or still runs).
        start_unix_s, end_unix_s: seconds since 1970; the end is None for an unfinished rank.
        recorder_cost_s: overhead of recording a call, measured by the rank at its start.
        dropped_calls: calls for which the histogram had no free cell.
        mpi_library: its version text.
        cells: the calls, by kind and size.
        communicators: the groups of ranks that they belong to.
        regions: the named parts of the program.
        unnamed_calls: calls and regions whose names found no room: they are "other".
        steps: the last 1024 steps.
        step_count: number of steps.
        all_steps: the sum over all steps; None where the program marks none.
        registration_cache: None where the library does not expose it.
        trace_capacity, trace_calls: calls that the trace holds at most, and calls that
            went into it, of which the oldest may be overwritten; 0 and 0 without a trace.
        clock: equal for ranks that read the same monotonic clock.
        clock_offsets: offsets measured at start and end, on one rank of each clock except rank 0's.
        start_clock_s: the monotonic clock at start.
        cores, host_cores: number of cores that the process may use, and that its host has; 0: not
            known.
        knows_queue: whether the kernel counts how long a thread was queued.
        yields: whether Open MPI was set to yield the core while it waits.
        partners: point-to-point messages by partner; empty in recordings of format 3.
        usage: None if the rank did not reach MPI_Finalize, and in format 3.
        machine: None in recordings of before November 2026.
        sites: places in the program that call MPI; empty in earlier recordings.
        seen_unix_s: last sign of life of an unfinished rank; None if it gave none.
        open_call: operation that the first thread of an unfinished rank was in; "" for none.
        open_s: time since that operation began.
    """

    rank: int
    size: int
    host: str
    pid: int
    state: str
    start_unix_s: float
    end_unix_s: float | None
    recorder_cost_s: float
    dropped_calls: int
    mpi_library: str
    cells: tuple[Cell, ...]
    communicators: tuple[Communicator, ...] = ()
    regions: tuple[Region, ...] = ()
    steps: tuple[Step, ...] = ()
    step_count: int = 0
    all_steps: Step | None = None
    registration_cache: RegistrationCache | None = None
    trace_capacity: int = 0
    trace_calls: int = 0
    clock: str = ""
    clock_offsets: tuple[ClockOffset, ...] = ()
    start_clock_s: float = 0.0
    unnamed_calls: int = 0
    cores: int = 0
    host_cores: int = 0
    knows_queue: bool = False
    yields: bool = False
    partners: tuple[Partner, ...] = ()
    usage: RunUsage | None = None
    machine: Machine | None = None
    sites: tuple[Site, ...] = ()
    seen_unix_s: float | None = None
    open_call: str = ""
    open_s: float = 0.0

    @property
    def queued_s(self) -> float:
        """How long its first thread waited for a core; 0 where that is not known."""
        if self.usage is not None:
            return self.usage.queued_s
        return self.all_steps.all_queued_s if self.all_steps else 0.0

    @property
    def until_unix_s(self) -> float | None:
        """Its end, or its last sign of life; None where neither is known."""
        return self.end_unix_s or self.seen_unix_s


@dataclass(frozen=True, slots=True)
class Recording:
    """A job's recording: its command, and the recordings of its ranks in order.

    Attributes:
        directory: the recording's.
        ranks: the ranks in ascending order.
        command: the command as it was typed; secrets are masked.
        host: the host on which `hvprof record` ran.
        start_unix_s, duration_s, exit_code: None where `hvprof record` was cut short or did not
            start the job (HVPROF_DIR and LD_PRELOAD were set manually).
        versions: versions of hvd_ext, Horovod, torch and MPI packages, by name.
        source: "mpi", or "timeline" for a Horovod timeline, which holds rank 0's fused calls.
        rank_files: the file of each rank, by number.
        hang: why ranks were blocked, where `hvprof record` found that while the job ran.
        flows: the data that the ranks sent between hosts by TCP.
    """

    directory: Path
    ranks: tuple[RankRecording, ...]
    command: tuple[str, ...] = ()
    host: str = ""
    start_unix_s: float | None = None
    duration_s: float | None = None
    exit_code: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    source: str = "mpi"
    rank_files: dict[int, Path] = field(default_factory=dict)
    hang: str = ""
    flows: tuple[Flow, ...] = ()

    @property
    def size(self) -> int:
        """Number of ranks of the job, recorded or not."""
        return max(rank.size for rank in self.ranks)

    @property
    def all_steps(self) -> Step | None:
        """The sum over a rank's steps, as a mean over the ranks that marked any."""
        sums = [rank.all_steps for rank in self.ranks if rank.all_steps]
        if not sums:
            return None
        return Step(
            index=max(step.index for step in sums),
            start_s=min(step.start_s for step in sums),
            **{name: _mean([getattr(step, name) for step in sums]) for name in _SUMMED},
        )

    def time_s(self, operation: str, traffic: str = "data") -> float:
        """Time a rank spent in an operation, as a mean over the ranks.

        Args:
            operation: such as "allreduce".
            traffic: see `Cell`.

        Returns:
            Seconds.
        """
        total = sum(
            cell.time_s
            for rank in self.ranks
            for cell in rank.cells
            if (cell.operation, cell.traffic) == (operation, traffic)
        )
        return total / len(self.ranks)
