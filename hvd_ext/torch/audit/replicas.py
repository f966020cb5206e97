"""The check that all ranks of a data-parallel job hold the same parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvd_ext.job.monitored_allgather import monitored_allgather
from hvd_ext.job.stalls import name_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

_OCCASION = "an audit of the parameters"


def find_difference(
    comm: MPI.Comm,
    hosts: Sequence[str],
    names: Sequence[str],
    fingerprints: Sequence[int],
    timeout_s: float,
) -> str | None:
    """Name the ranks whose parameters differ from those of most ranks; collective.

    Args:
        comm: the ranks that should hold the same parameters.
        hosts: their host names.
        names: names of the parameters.
        fingerprints: this rank's, in the same order.
        timeout_s: how long to wait for a late rank.

    Returns:
        The same text on every rank; None if all ranks hold the same.

    Raises:
        StallError: ranks did not reach this in time; names them.
    """
    mine = hash(tuple(fingerprints))  # of numbers, which is the same in every process
    if len(set(monitored_allgather(comm, mine, timeout_s, _OCCASION, hosts))) == 1:
        return None
    return describe(comm.allgather(list(fingerprints)), hosts, names)


def describe(every: Sequence[Sequence[int]], hosts: Sequence[str], names: Sequence[str]) -> str:
    """Describe a difference between the ranks' fingerprints. Pure.

    The largest group of equal ranks counts as right; of two equally large groups, that of rank 0.
    """
    counts = Counter(map(tuple, every))
    most = max(counts.values())
    right = next(one for one in map(tuple, every) if counts[one] == most)
    wrong = [rank for rank, one in enumerate(every) if tuple(one) != right]
    differing = [
        name
        for index, name in enumerate(names)
        if any(every[rank][index] != right[index] for rank in wrong)
    ]
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    verb = "holds" if len(wrong) == 1 else "hold"
    return (
        f"{name_ranks(wrong, hosts)} {verb} other values of {differing[0]!r}{more} than the other "
        f"{len(every) - len(wrong)} of {len(every)} ranks"
    )
