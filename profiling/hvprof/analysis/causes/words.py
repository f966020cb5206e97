"""A cause in words."""

from __future__ import annotations

from hvd_ext.units import counted, format_bytes, format_seconds
from hvprof.analysis.causes.cause import Cause
from hvprof.analysis.causes.kinds import Kind, ranks_text
from hvprof.analysis.causes.unfinished import Went
from hvprof.analysis.waiting.call_costs import OperationCost, is_wait


def because(cause: Cause) -> str:
    """Return the reason for communication's time, as the text after a colon."""
    if cause.shortage:
        return _without_cores(cause)
    if cause.kind is Kind.LAST_CALL:
        return _at_last(cause)
    if cause.kind is Kind.SLOW_CORES and cause.condition:
        return f"the others wait for {ranks_text(cause.ranks)}: {cause.condition.what}"
    if cause.condition:
        return f"{cause.condition.what}, and all ranks are there"
    first = cause.largest
    return {
        Kind.ONE_RANK: "the job has one rank, which waits for no other",
        Kind.SHORT: "the run is too short to say more",
        Kind.LIGHT: "communication is no bottleneck",
        Kind.SERIAL: "ranks work one after another, and wait until it is their turn",
        Kind.SPARE_RANK: "a rank with little work waits for the others, which hardly wait",
        Kind.TURNS: "ranks wait for each other, for a different one each time",
        Kind.ROOTS: f"ranks wait for the root of {first.operation}, which is another one each time",
        Kind.BARRIERS: (
            f"ranks synchronize in {first.calls:.0f} barriers, and wait for a different one each "
            "time"
        ),
        Kind.PIECES: (
            "one rank hands out few pieces of work, and the others wait while the last ones are "
            "done"
        ),
        Kind.PIPELINE: (
            "ranks pass work on from one to the next, and wait while this pipeline fills and drains"
        ),
        Kind.SEND_CHAIN: (
            "each rank sends to the next one before it receives, so that messages are sent one "
            "after another"
        ),
        Kind.DERIVED_TYPE: (
            f"{_messages(first)} have a derived type, and packing it takes longer than moving "
            f"{format_bytes(round(first.total_bytes))}"
        ),
        Kind.CALLS: _calls(cause),
        Kind.SMALL_MESSAGES: f"{_messages(first)} cost more than their bytes",
        Kind.TRANSFER: (
            f"{_messages(first)} move {format_bytes(round(first.total_bytes))} a rank, and all "
            "ranks are there"
        ),
    }.get(cause.kind) or _late(cause)


def _at_last(cause: Cause) -> str:
    waited = f"{format_seconds(cause.last_call_s)} in {cause.last_call}"
    if not cause.ranks:
        return f"the ranks did not finish, and all of them waited in MPI at last, for {waited}"
    was = "was" if len(cause.ranks) == 1 else "were"
    how = {
        Went.OUTSIDE: f"{was} outside of MPI",
        Went.ENDED: "had ended",
        Went.ABORTED: "called MPI_Abort",
    }[cause.went]
    return f"at last the others waited for {waited}, and {ranks_text(cause.ranks)} {how}"


def _calls(cause: Cause) -> str:
    first = cause.largest
    found = f" for {first.messages:.0f} messages" if first.asking_s else ""
    part = "most of it" if 2 * first.time_s > cause.time_s else "the largest part of it"
    return f"{first.calls:.0f} calls of {first.operation}{found} take {part}"


def _messages(cost: OperationCost) -> str:
    """Return '1200 calls of allreduce with 8 bytes each'; a wait has its request's bytes."""
    size = format_bytes(round(cost.message_bytes or 0))
    if is_wait(cost.operation):
        return f"{cost.messages:.0f} messages of {size} each, which {cost.operation} waits for,"
    return f"{cost.calls:.0f} calls of {cost.operation} with {size} each"


def _late(cause: Cause) -> str:
    who, verb = ranks_text(cause.ranks), "spends" if len(cause.ranks) == 1 else "spend"
    longer = (
        f"{verb} {format_seconds(cause.late_s)} outside of MPI and the others "
        f"{format_seconds(cause.others_s)}"
    )
    it = "it" if len(cause.ranks) == 1 else "they"
    receives = "receives" if len(cause.ranks) == 1 else "receive"
    reads = "reads or writes" if len(cause.ranks) == 1 else "read or write"
    return {
        Kind.FILES: (
            f"the others wait for {who}, which {reads} files "
            f"({format_bytes(round(cause.files_bytes))}): {it} {longer}"
        ),
        Kind.HOST: f"the others wait for {cause.host}, whose {who} {longer}",
        Kind.LATE_SENDER: f"the others wait to receive from {who}, late because {it} {longer}",
        Kind.LATE_RECEIVER: f"the others wait until {who} {receives}, late because {it} {longer}",
        Kind.APART: (f"the others wait for {who}, which exchange data among themselves meanwhile"),
        Kind.LATE_RANK: f"the others wait for {who}: {it} {longer}",
    }[cause.kind]


def _without_cores(cause: Cause) -> str:
    short = cause.shortage
    assert short
    cores = counted(short.cores, "core")
    if short.condition:
        return short.condition.what
    if cause.kind is Kind.RANKS_SHARE_CORES:
        wanted = f"on average {short.threads:.1f} of them want one"
        if short.threads <= short.cores:
            wanted = "wait for one when they exchange data"
        return f"{short.here} ranks share {cores} of {short.host}, and {wanted}"
    if cause.kind is Kind.THREADS_SHARE_CORES:
        return (
            f"{short.here} ranks have {short.threads:.1f} threads that want a core, and "
            f"{short.host} has {short.cores}"
        )
    others = "other programs use the cores"
    if short.bound:
        others += ", or ranks are bound to the same ones"
    waited = format_seconds(short.queued_s)
    if short.ranks:
        who, verb = ranks_text(short.ranks), "waits" if len(short.ranks) == 1 else "wait"
        return (
            f"the others wait for {who} of {short.host}, which {verb} for a core for {waited}: "
            f"{others}"
        )
    share = 100 * short.queued_s / cause.run_s
    who, each = f"the {short.here} ranks wait", " each"
    if short.here == 1:
        who, each = "the rank waits", ""
    return (
        f"{who} for one of the {cores} of {short.host} for {share:.0f} % of the run "
        f"({waited}{each}): {others}"
    )
