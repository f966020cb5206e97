"""The verdict on a program without steps, from the cause of its communication's cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hvd_ext.units import format_bytes, format_seconds
from hvprof.analysis.cause import Cause


def run_sentences(cause: Cause) -> Iterator[str]:
    """The share of MPI with its cause, the largest operation, the chain, and advice."""
    share = 100 * cause.mpi_s / cause.run_s
    spread = ""
    if cause.high_percent - cause.low_percent >= 5:
        spread = f", {cause.low_percent:.0f} to {cause.high_percent:.0f} % by rank"
    threads = ""
    if cause.threads_in_mpi > 1:
        threads = f" and thread, of {cause.threads_in_mpi} threads that call it"
    yield (
        f"MPI takes {share:.0f} % of the run ({format_seconds(cause.mpi_s)} of "
        f"{format_seconds(cause.run_s)} a rank{threads}{spread}): {_because(cause)}."
    )
    largest = cause.largest
    if cause.time_s and largest.time_s:
        waits = "waiting" if largest.wait_s > largest.time_s / 2 else "transfer"
        part = 100 * max(largest.wait_s, largest.time_s - largest.wait_s) / largest.time_s
        yield (
            f"The largest part is {largest.operation} ({format_seconds(largest.time_s)} a rank), "
            f"an estimated {part:.0f} % of it {waits}."
        )
    if cause.chain:
        links = [f"rank {rank}" for rank in cause.chain]
        yield f"Chain: {' waits for '.join(links[:2])}, which waits for {', for '.join(links[2:])}."
    if advice := _ADVICE.get(cause.kind):
        yield advice.format(who=ranks_text(cause.ranks), host=cause.host)


def ranks_text(ranks: Sequence[int]) -> str:
    """'rank 3', 'ranks 1 and 2' or 'ranks 1, 2, 3, ...'."""
    shown = [str(rank) for rank in ranks[:4]]
    if len(ranks) > len(shown):
        return f"ranks {', '.join(shown)}, ..."
    if len(shown) < 2:
        return f"rank {''.join(shown)}"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def _because(cause: Cause) -> str:
    who, verb = ranks_text(cause.ranks), "spends" if len(cause.ranks) == 1 else "spend"
    longer = (
        f"{verb} {format_seconds(cause.late_s)} outside of MPI and the others "
        f"{format_seconds(cause.others_s)}"
    )
    first = cause.largest
    return {
        "ranks share cores": (
            f"{cause.here} ranks share {cause.cores} cores of {cause.host}, and on average "
            f"{cause.threads:.1f} of them want one"
        ),
        "threads share cores": (
            f"{cause.here} ranks have {cause.threads:.1f} threads that want a core, and "
            f"{cause.host} has {cause.cores}"
        ),
        "light": "communication is no bottleneck",
        "serial": "ranks work one after another, and wait until it is their turn",
        "spare rank": "a rank with little work waits for the others, which hardly wait",
        "files": (
            f"the others wait for {who}, which reads or writes files "
            f"({format_bytes(round(cause.files_bytes))}): it {longer}"
        ),
        "host": f"the others wait for {cause.host}, whose {who} {longer}",
        "late sender": f"the others wait to receive from {who}, late because it {longer}",
        "late receiver": f"the others wait until {who} receives, late because it {longer}",
        "late rank": f"the others wait for {who}: it {longer}",
        "turns": "ranks wait for each other, for a different one each time",
        "small messages": (
            f"{first.calls:.0f} calls of {first.operation} with {first.message_bytes:.0f} bytes "
            "each cost more than their bytes"
        ),
        "transfer": (
            f"{first.operation} moves {format_bytes(round(first.calls * first.message_bytes))} a "
            "rank, and all ranks are there"
        ),
    }[cause.kind]


_ADVICE = {
    "ranks share cores": "Start as many ranks as there are cores.",
    "threads share cores": "Give each rank fewer threads (OMP_NUM_THREADS), or a host fewer ranks.",
    "serial": "Let ranks begin without the result of the one before, or split the work finer.",
    "files": "Let all ranks read and write a part, or do it behind the computation.",
    "host": "Compare {host} with the other hosts: its cores, its memory, and who else uses it.",
    "late sender": "Give {who} less work, or let it send earlier.",
    "late receiver": "Give {who} less work, or let it post its receives earlier (MPI_Irecv).",
    "late rank": "Give {who} less work, or see what delays it.",
    "turns": "Wait less often: fewer collectives, or non-blocking ones with work in between.",
    "small messages": "Send fewer and larger messages.",
    "transfer": "Send fewer bytes, or overlap them with computation.",
}
