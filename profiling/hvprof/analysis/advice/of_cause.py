"""Advice on the cause of communication's cost: one change for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hvprof.analysis.advice.case import Advice, Case
from hvprof.analysis.causes.cause import Cause
from hvprof.analysis.causes.kinds import Kind, ranks_text
from hvprof.analysis.causes.unfinished import Went
from hvprof.analysis.causes.words import because
from hvprof.analysis.conditions import Condition


class _Change(NamedTuple):
    """The title and the setting of an advice, and its largest saving in s of a rank."""

    title: str
    setting: str
    most_s: Callable[[Cause], float | None]


def _waiting(cause: Cause) -> float:
    return cause.wait_s


def _lateness(cause: Cause) -> float:
    return max(cause.late_s - cause.others_s, 0.0)


def _largest(cause: Cause) -> float:
    return cause.largest.time_s


def _without_cores(cause: Cause) -> float | None:
    if not cause.shortage:
        return None
    return (
        min(cause.shortage.queued_s, _lateness(cause)) if cause.ranks else cause.shortage.queued_s
    )


def _unknown(cause: Cause) -> None:
    del cause


_WORK = "the share of the work that each rank has"
_CODE = "the program's communication"
_FILES = "the program's input and output"
_CHANGES = {
    Kind.RANKS_SHARE_CORES: _Change(
        "Start as many ranks as there are cores", "the launcher's number of ranks (-np)", _unknown
    ),
    Kind.THREADS_SHARE_CORES: _Change(
        "Give each rank fewer threads (OMP_NUM_THREADS), or a host fewer ranks",
        "OMP_NUM_THREADS, or the launcher's number of ranks (-np)",
        _unknown,
    ),
    Kind.LAST_CALL: _Change(
        "Let hvprof name the ranks that a call waits for, and what they do",
        "hvprof record --on-hang S, or hvprof hang while the job runs",
        _unknown,
    ),
    Kind.WITHOUT_CORES: _Change(
        "Give each rank a core to itself: end other programs there, or check the binding "
        "(--report-bindings)",
        "the host's other programs, an exclusive allocation, the launcher's binding",
        _without_cores,
    ),
    Kind.SERIAL: _Change(
        "Let ranks begin without the result of the one before, split the work finer, or spread "
        "each part of it over all ranks",
        "the order of the work, and the size of its pieces",
        _waiting,
    ),
    Kind.FILES: _Change(
        "Let all ranks read and write a part, or do it behind the computation",
        _FILES,
        _lateness,
    ),
    Kind.HOST: _Change(
        "Compare {host} with the other hosts: its cores, its memory, and who else uses it",
        "the hosts of the job",
        _lateness,
    ),
    Kind.LATE_SENDER: _Change(
        "Give {who} less work, let it send earlier, or see what delays it", _WORK, _lateness
    ),
    Kind.LATE_RECEIVER: _Change(
        "Give {who} less work, let it post its receives earlier (MPI_Irecv), or see what delays it",
        _WORK,
        _lateness,
    ),
    Kind.LATE_RANK: _Change("Give {who} less work, or see what delays it", _WORK, _lateness),
    Kind.APART: _Change(
        "Let the others work while {who} exchange data, or spread that exchange over all ranks",
        _CODE,
        _waiting,
    ),
    Kind.PIECES: _Change("Hand out more and smaller pieces of work", _WORK, _waiting),
    Kind.PIPELINE: _Change(
        "Split the work into more and smaller pieces (microbatches)", _WORK, _waiting
    ),
    Kind.SEND_CHAIN: _Change(
        "Start all messages before waiting for one: MPI_Sendrecv, or MPI_Irecv and MPI_Isend",
        _CODE,
        _waiting,
    ),
    Kind.DERIVED_TYPE: _Change(
        "Copy the data to contiguous memory before it is sent, or use larger blocks in its type",
        _CODE,
        _largest,
    ),
    Kind.TURNS: _Change(
        "Wait less often: fewer collectives or messages, non-blocking ones with work in between, "
        "or work that is more even at each time",
        _CODE,
        _waiting,
    ),
    Kind.ROOTS: _Change(
        "Let the next root prepare its data while the others still work, and send it early "
        "(MPI_I{operation})",
        _CODE,
        _waiting,
    ),
    Kind.BARRIERS: _Change(
        "Synchronize less often: leave out barriers that other calls make needless",
        _CODE,
        _largest,
    ),
    Kind.CALLS: _Change("Call {operation} less often", _CODE, _largest),
    Kind.SMALL_MESSAGES: _Change("Send fewer and larger messages", _CODE, _largest),
    Kind.TRANSFER: _Change("Send fewer bytes, or overlap them with computation", _CODE, _largest),
}


_CHANGES_OF_FILES = {
    Kind.SMALL_MESSAGES: _Change(
        "Read and write more bytes in a call, or by collective calls (MPI_File_write_at_all)",
        _FILES,
        _largest,
    ),
    Kind.TRANSFER: _Change(
        "Read and write fewer bytes, or overlap them with computation", _FILES, _largest
    ),
}
_OF_CONDITIONS = {
    "link": "Look at the link of {}",
    "quota": "Raise the CPU quota of {}",
    "clock": "Look at the clock of {}",
    "core": "Look at the cores of {}",
}


def of_cause(case: Case) -> Iterator[Advice]:
    """Return advice on the cause; none if steps are marked or communication needs no change."""
    cause = case.cause
    if cause is None or case.recording.all_steps:
        return
    if cause.condition:
        yield _of_condition(case, cause.condition)
    of_files = cause.largest.operation.startswith("file_")
    changes = {**_CHANGES, **(_CHANGES_OF_FILES if of_files else {})}
    # A rank that calls MPI_Abort has a reason that hvprof does not see.
    if (change := changes.get(cause.kind)) and cause.went is not Went.ABORTED:
        evidence = because(cause)
        yield from case.advice(
            change.title.format(
                who=ranks_text(cause.ranks), host=cause.host, operation=cause.largest.operation
            ),
            f"{evidence[0].upper()}{evidence[1:]}.",
            change.setting,
            change.most_s(cause),
            case.again("changed"),
        )


def of_conditions(case: Case) -> Iterator[Advice]:
    """Return advice on links, quotas and clocks that are too slow, apart from the cause."""
    known = case.cause.condition if case.cause and not case.recording.all_steps else None
    for one in case.conditions:
        if one is not known:
            yield _of_condition(case, one)


def _of_condition(case: Case, one: Condition) -> Advice:
    most_s = one.share * case.base_s
    if one.kind == "link" and case.communication_s is not None:
        most_s = min(most_s, case.communication_s)
    if one.kind == "core" and case.cause:
        most_s = min(most_s, _lateness(case.cause))
    return Advice(
        _OF_CONDITIONS[one.kind].format(" and ".join(one.hosts)),
        f"{one.what[0].upper()}{one.what[1:]}.",
        one.look,
        most_s,
        100 * most_s / case.base_s if case.base_s else None,
        case.share_of,
        case.again(one.kind),
    )
