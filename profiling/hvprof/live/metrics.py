"""The metrics of a running job: their names, meanings, and values in a reading.

A site keeps every series of every job, so there are few. Series that can reveal a late rank exist
for each rank; calls are summed over the ranks of a host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hvprof.live.diagnosis import diagnose
from hvprof.live.snapshot import Snapshot
from hvprof.model import Step

# Label values, in the order of the metric's labels, and the number.
Sample = tuple[tuple[str, ...], float]
Read = Callable[[Snapshot, float], Iterator[Sample]]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by Prometheus' conventions.

    Attributes:
        name: its name with its unit. A counter is exposed with "_total" after it.
        kind: "counter" or "gauge".
        help: its meaning, in a sentence.
        labels: names of its labels.
        read: returns the samples of a reading. Its second argument is the number of seconds after
            which a call counts as blocked.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    read: Read


def _up(reading: Snapshot, longer_than_s: float) -> Iterator[Sample]:
    del longer_than_s
    yield (), float(not reading.ended)


def _processes(reading: Snapshot, longer_than_s: float) -> Iterator[Sample]:
    del longer_than_s
    states = Counter((one.host, one.process.name.lower()) for one in reading.standings)
    yield from sorted(states.items())


def _blocked(reading: Snapshot, longer_than_s: float) -> Iterator[Sample]:
    causes = () if reading.ended else diagnose(reading.standings, longer_than_s)
    yield (), len({rank for cause in causes for rank in cause.waiting})


def _of_ranks(value: Callable[[Snapshot, int], float | None]) -> Read:
    def read(reading: Snapshot, longer_than_s: float) -> Iterator[Sample]:
        del longer_than_s
        for rank in sorted(reading.ranks):
            found = value(reading, rank)
            if found is not None:
                yield (str(rank), reading.standings[rank].host), found

    return read


def _steps(reading: Snapshot, rank: int) -> Step | None:
    return reading.ranks[rank].counters.steps


def _steps_total(reading: Snapshot, rank: int) -> float | None:
    steps = _steps(reading, rank)
    return steps.index if steps else 0


def _since_step(reading: Snapshot, rank: int) -> float | None:
    return reading.ranks[rank].since_step_s if _steps(reading, rank) else None


def _waiting(reading: Snapshot, rank: int) -> float | None:
    return 0.0 if reading.ended else reading.ranks[rank].call_s


# Parts that add up to a step's time, and communication during computing.
_PARTS = ("compute", "exposed", "io", "other", "overlapped")


def _step_seconds(reading: Snapshot, longer_than_s: float) -> Iterator[Sample]:
    del longer_than_s
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for rank in reading.ranks:
        if steps := _steps(reading, rank):
            for part in _PARTS:
                sums[part, reading.standings[rank].host] += getattr(steps, f"{part}_s")
    yield from sorted(sums.items())


def _of_calls(attribute: str) -> Read:
    def read(reading: Snapshot, longer_than_s: float) -> Iterator[Sample]:
        del longer_than_s
        sums: dict[tuple[str, ...], float] = defaultdict(float)
        for rank, state in reading.ranks.items():
            host = reading.standings[rank].host
            for one in state.counters.counts:
                labels = (one.operation, one.algorithm, one.traffic, host)
                sums[labels] += getattr(one, attribute)
        yield from sorted(sums.items())

    return read


def _dropped(reading: Snapshot, longer_than_s: float) -> Iterator[Sample]:
    del longer_than_s
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for rank, state in reading.ranks.items():
        sums[reading.standings[rank].host,] += state.counters.dropped_calls
    yield from sorted(sums.items())


_RANK = ("rank", "host")
_CALL = ("operation", "algorithm", "traffic", "host")
METRICS = (
    Metric("hvprof_up", "gauge", "1 while the job runs, 0 once it has ended.", (), _up),
    Metric(
        "hvprof_processes",
        "gauge",
        "Ranks of the job, by the state of their process.",
        ("host", "state"),
        _processes,
    ),
    Metric(
        "hvprof_blocked_ranks",
        "gauge",
        "Ranks that have been blocked in a call for longer than --longer-than.",
        (),
        _blocked,
    ),
    Metric(
        "hvprof_waiting_seconds",
        "gauge",
        "For how long the rank has been in its present call; 0 outside of MPI.",
        _RANK,
        _of_ranks(_waiting),
    ),
    Metric("hvprof_steps", "counter", "Steps that have ended.", _RANK, _of_ranks(_steps_total)),
    Metric(
        "hvprof_since_step_seconds",
        "gauge",
        "Time since the rank's last step ended.",
        _RANK,
        _of_ranks(_since_step),
    ),
    Metric(
        "hvprof_step_seconds",
        "counter",
        "Time of the steps that have ended, by part, summed over ranks. Besides the parts, "
        "overlapped is communication during computing.",
        ("part", "host"),
        _step_seconds,
    ),
    Metric(
        "hvprof_mpi_seconds",
        "counter",
        "Time in MPI's calls, summed over threads, without control traffic.",
        _RANK,
        _of_ranks(lambda reading, rank: reading.ranks[rank].mpi_s),
    ),
    Metric(
        "hvprof_operation_calls",
        "counter",
        "Calls that have ended, summed over ranks.",
        _CALL,
        _of_calls("calls"),
    ),
    Metric(
        "hvprof_operation_bytes",
        "counter",
        "Payload of the calls that have ended, summed over ranks.",
        _CALL,
        _of_calls("message_bytes"),
    ),
    Metric(
        "hvprof_operation_seconds",
        "counter",
        "Time in the calls that have ended, summed over ranks and threads.",
        _CALL,
        _of_calls("time_s"),
    ),
    Metric(
        "hvprof_dropped_calls",
        "counter",
        "Calls that are counted nowhere else, as the recorder had no room for their kind.",
        ("host",),
        _dropped,
    ),
)
