"""Where a rank stands: what each of its threads does, and what becomes of its process."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from hvprof.format.connections import Connection


class Process(enum.Enum):
    """The state of a rank's process, as far as it is known."""

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
    """A communicator, as its ranks agree on it.

    Attributes:
        id: 16 hex digits, the same on all its ranks; "" where it has none.
        name: as a reader would call it.
        ranks: the world ranks in it, in its order; None where the recording does not hold all.
    """

    id: str
    name: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a thread is in.

    Attributes:
        operation: "allreduce", "recv", "wait", ...
        started: the non-blocking operation that a wait is for, "" where that is unknown.
        requests: of a wait, how many requests it is for.
        group: the communicator; None where it is unknown.
        number: of a collective, from 1, on that communicator; 0 where it is unknown.
        peer: world rank of the root or of the rank that it waits for; None where there is none.
        any_source: whether any rank's message ends it.
        message_bytes: 0 where that is unknown.
        collective: whether all ranks of the communicator make it.
        coordination: whether it is Horovod's coordination.
        about: the name of what is waited for, where the program reports it; "" otherwise.
        late: ranks that the program knows not to have come.
        by_name: ranks match it by its name, not by its number: that is a key.
        tag: of a message; None where there is none, or any will do.
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
        """The operation that has to come to an end."""
        return self.started or self.operation


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that a rank has sent.

    Attributes:
        to: the world rank that it is for.
        tag: its own.
        message_bytes: of its payload.
        number: of those to this rank, from 1.
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
        id: of the kernel.
        main: whether it is the process's first.
        call: that it is in, or None.
        since_s: for how long it has been in the call, or out of the last.
        last: the call that it left last, or None.
        region: the innermost region that it is in, or "".
        region_kind: "compute", "communication", "io" or "other".
        region_s: for how long it has been in the region.
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
    """Where a rank stands.

    Attributes:
        rank: in the world.
        size: of the world; 0 where the rank has not started.
        host: its name, "" where the rank has not started.
        pid: of its process.
        process: what is known of that.
        by_signs: its process is not seen, and known by its signs of life alone.
        signal: that ended it, or 0.
        steps: that it has ended.
        threads: those that have called MPI.
        entered: by a communicator's id, how many collectives it entered there.
        latest: by a communicator's id, the operations of the latest of these, by number.
        submitted: keys of the latest operations that it submitted by name.
        sent: the latest messages that it sent, in their order.
        addresses: IPv4, at this end of its connections.
        connections: to other hosts.
        without_carrier: a network interface of its host that has no carrier; "" for none.
        line: that its Python runs, such as "train.py:118 in augment"; "" where it is not known.
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
