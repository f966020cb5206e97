"""The verdict on a program without steps, from the cause of its communication's cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hvd_ext.units import format_seconds
from hvprof.analysis.causes.cause import Cause
from hvprof.analysis.causes.kinds import Kind
from hvprof.analysis.causes.words import because
from hvprof.analysis.sites import SiteCost

# The sentence leaves out calls that take no more than this share of MPI's time.
_SMALL = 0.1
_NOWHERE = (Kind.ONE_RANK, Kind.SHORT, Kind.LAST_CALL)


def run_sentences(cause: Cause, sites: Sequence[SiteCost] = ()) -> Iterator[str]:
    """The share of MPI with its cause and place, the largest operation, and the chain.

    Args:
        cause: cause of the cost of communication.
        sites: places that call MPI, the longest first.
    """
    share = 100 * cause.mpi_s / cause.run_s
    spread = ""
    if cause.high_percent - cause.low_percent >= 5:
        spread = f", {cause.low_percent:.0f} to {cause.high_percent:.0f} % by rank"
    threads = ""
    if cause.threads_in_mpi > 1:
        threads = f" and thread, of {cause.threads_in_mpi} threads that call it"
    spread += _site(cause, sites)
    yield (
        f"MPI takes {share:.0f} % of the run ({format_seconds(cause.mpi_s)} of "
        f"{format_seconds(cause.run_s)} a rank{threads}{spread}): {because(cause)}."
    )
    largest = cause.largest
    if largest.time_s and cause.kind not in _NOWHERE:
        parts = {
            "waiting": largest.wait_s,
            "calls that find nothing": largest.asking_s,
            "transfer": largest.time_s - largest.wait_s - largest.asking_s,
        }
        most = max(parts, key=parts.__getitem__)
        yield (
            f"The largest part is {largest.operation} ({format_seconds(largest.time_s)} a rank), "
            f"an estimated {100 * parts[most] / largest.time_s:.0f} % of it {most}."
        )
    if cause.chain:
        links = [f"rank {rank}" for rank in cause.chain]
        yield f"Chain: {' waits for '.join(links[:2])}, which waits for {', for '.join(links[2:])}."


def _site(cause: Cause, sites: Sequence[SiteCost]) -> str:
    """The place where most of MPI's time is spent, with its share; "" where it has no name."""
    # Ranks that wait in MPI_Finalize do so at no site.
    time_s = max(sum(one.time_s for one in sites), cause.mpi_s * cause.threads_in_mpi)
    if cause.kind in _NOWHERE or not sites or sites[0].time_s <= _SMALL * time_s:
        return ""
    first = sites[0]
    if not first.short:
        return ""
    return f"; {100 * first.time_s / time_s:.0f} % of it in {first.function} {first.short}"
