"""A cause in words."""

from __future__ import annotations

from hvd_ext.units import format_bytes, format_seconds
from hvprof.analysis.causes.kinds import Cause, Kind, ranks_text


def because(cause: Cause) -> str:
    """Why communication takes the time that it takes: what follows a colon."""
    who, verb = ranks_text(cause.ranks), "spends" if len(cause.ranks) == 1 else "spend"
    longer = (
        f"{verb} {format_seconds(cause.late_s)} outside of MPI and the others "
        f"{format_seconds(cause.others_s)}"
    )
    first = cause.largest
    return {
        Kind.RANKS_SHARE_CORES: (
            f"{cause.here} ranks share {cause.cores} cores of {cause.host}, and on average "
            f"{cause.threads:.1f} of them want one"
        ),
        Kind.THREADS_SHARE_CORES: (
            f"{cause.here} ranks have {cause.threads:.1f} threads that want a core, and "
            f"{cause.host} has {cause.cores}"
        ),
        Kind.LIGHT: "communication is no bottleneck",
        Kind.SERIAL: "ranks work one after another, and wait until it is their turn",
        Kind.SPARE_RANK: "a rank with little work waits for the others, which hardly wait",
        Kind.FILES: (
            f"the others wait for {who}, which reads or writes files "
            f"({format_bytes(round(cause.files_bytes))}): it {longer}"
        ),
        Kind.HOST: f"the others wait for {cause.host}, whose {who} {longer}",
        Kind.LATE_SENDER: f"the others wait to receive from {who}, late because it {longer}",
        Kind.LATE_RECEIVER: f"the others wait until {who} receives, late because it {longer}",
        Kind.LATE_RANK: f"the others wait for {who}: it {longer}",
        Kind.TURNS: "ranks wait for each other, for a different one each time",
        Kind.SMALL_MESSAGES: (
            f"{first.calls:.0f} calls of {first.operation} with {first.message_bytes:.0f} bytes "
            "each cost more than their bytes"
        ),
        Kind.TRANSFER: (
            f"{first.operation} moves {format_bytes(round(first.calls * first.message_bytes))} a "
            "rank, and all ranks are there"
        ),
    }[cause.kind]
