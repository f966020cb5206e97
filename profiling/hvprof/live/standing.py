"""The standing of a rank: the calls of its threads, and the state of its process."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from hvprof.format.connections import Connection


class Process(enum.Enum):
    """The state of a rank's process, as far as known."""

    RUNS = "runs"
    SLEEPS = "sleeps"
    STOPPED = "stopped"
    ON_DISK = "waits for the disk"
    GONE = "gone"
    EXITED = "exited without MPI_Finalize"
    FINALIZED = "finalized"
    NOT_STARTED = "has not started MPI"
    ELSEWHERE = "on another host"
    SILENT = "gives no sign of life"


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator.

    Attributes:
        id: 16 hex digits, the same on all its ranks; "" if it has none.
        name: its name for readers.
        ranks: the world ranks in it, in its order; None if the recording does not have all.
    """

    id: str
    name: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a thread is in.

    Attributes:
        operation: "allreduce", "recv", "wait", ...
        started: the non-blocking operation of a wait, "" if unknown.
        requests: number of requests of a wait.
        group: the communicator; None if unknown.
        number: a collective's number on that communicator, from 1; 0 if unknown.
        peer: world rank of the root or of the rank for which it waits; None if there is none.
        any_source: whether any rank's message ends it.
        message_bytes: payload; 0 if unknown.
        collective: whether all ranks of the communicator make it.
        coordination: whether it is Horovod's coordination.
        about: the name of the awaited exchange, if the program reports it; "" otherwise.
        late: ranks that the program reports as late.
        by_name: whether ranks match it by name; its number is then a key.
        tag: tag of a message; None if there is none, or any tag matches.
    """

    operation: str
    group: Group | None = None
    number: int = 0
    peer: int | None = None
    any_source: bool = False
    message_bytes: int = 0
    collective: bool = False
    coordination: bool = False
    started: str = ""
    requests: int = 0
    about: str = ""
    late: tuple[int, ...] = ()
    by_name: bool = False
    tag: int | None = None

    @property
    def what(self) -> str:
        """Return the operation that must end."""
        return self.started or self.operation


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a rank has sent.

    Attributes:
        to: world rank of the receiver.
        tag: its tag.
        message_bytes: its payload.
        number: its number among those to this rank, from 1.
        group: its communicator's id.
    """

    to: int
    tag: int
    message_bytes: int
    number: int
    group: str


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread that has called MPI or entered a region.

    Attributes:
        id: the kernel's thread id.
        main: whether it is the process's first thread.
        call: its current call, or None.
        since_s: time since it entered the call, or left the last one.
        last: the call that it left last, or None.
        region: its innermost current region, or "".
        region_kind: "compute", "communication", "io" or "other".
        region_s: time since it entered the region.
    """

    id: int
    main: bool
    call: Call | None
    since_s: float
    last: Call | None = None
    region: str = ""
    region_kind: str = "other"
    region_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of a rank.

    Attributes:
        rank: number in the world.
        size: size of the world; 0 if the rank has not started.
        host: name of its host, "" if the rank has not started.
        pid: its process id.
        process: the state of its process.
        by_signs: whether the state is known only by signs of life.
        signal: the signal that ended it, or 0.
        steps: number of ended steps.
        threads: threads that have called MPI.
        entered: number of collectives that it entered, by communicator id.
        latest: the operations of the latest ones, by communicator id and number.
        submitted: keys of the latest operations that it submitted by name.
        sent: the latest messages that it sent, in order.
        addresses: IPv4 addresses at this end of its connections.
        connections: connections to other hosts.
        without_carrier: a network interface of its host that has no carrier; "" for none.
        line: the line that it runs, such as "train.py:118 in augment"; "" if unknown.
    """

    rank: int
    host: str = ""
    size: int = 0
    pid: int = 0
    process: Process = Process.RUNS
    by_signs: bool = False
    signal: int = 0
    steps: int = 0
    threads: tuple[Thread, ...] = ()
    entered: Mapping[str, int] = field(default_factory=dict)
    latest: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    submitted: frozenset[int] = frozenset()
    sent: tuple[Sent, ...] = ()
    addresses: tuple[str, ...] = ()
    connections: tuple[Connection, ...] = ()
    without_carrier: str = ""
    line: str = ""
