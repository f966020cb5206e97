"""The verdict on a program without steps, from the cause of its communication's cost."""

from __future__ import annotations

from collections.abc import Iterator

from hvd_ext.units import format_seconds
from hvprof.analysis.causes.cause import Cause
from hvprof.analysis.causes.kinds import Kind
from hvprof.analysis.causes.words import because


def run_sentences(cause: Cause) -> Iterator[str]:
    """The share of MPI with its cause, the largest operation, and the chain."""
    share = 100 * cause.mpi_s / cause.run_s
    spread = ""
    if cause.high_percent - cause.low_percent >= 5:
        spread = f", {cause.low_percent:.0f} to {cause.high_percent:.0f} % by rank"
    threads = ""
    if cause.threads_in_mpi > 1:
        threads = f" and thread, of {cause.threads_in_mpi} threads that call it"
    yield (
        f"MPI takes {share:.0f} % of the run ({format_seconds(cause.mpi_s)} of "
        f"{format_seconds(cause.run_s)} a rank{threads}{spread}): {because(cause)}."
    )
    largest = cause.largest
    if largest.time_s and cause.kind not in (Kind.ONE_RANK, Kind.SHORT, Kind.LAST_CALL):
        waits = "waiting" if largest.wait_s > largest.time_s / 2 else "transfer"
        part = 100 * max(largest.wait_s, largest.time_s - largest.wait_s) / largest.time_s
        yield (
            f"The largest part is {largest.operation} ({format_seconds(largest.time_s)} a rank), "
            f"an estimated {part:.0f} % of it {waits}."
        )
    if cause.chain:
        links = [f"rank {rank}" for rank in cause.chain]
        yield f"Chain: {' waits for '.join(links[:2])}, which waits for {', for '.join(links[2:])}."
