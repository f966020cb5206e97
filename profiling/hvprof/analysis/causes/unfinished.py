"""Ranks that were killed or still run: the call in which they were at last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hvprof.model import RankRecording

_MOST = 0.5
# Signs of life follow each other in less than half of this time.
_LATER_S = 0.6


@dataclass(frozen=True, slots=True)
class LastCall:
    """A call that most ranks were in at last.

    Attributes:
        operation: the most frequent.
        time_s: that the first of them had been in it.
        ranks: that were outside of MPI then; empty if none was.
        ended_first: these ranks had ended by then.
    """

    operation: str
    time_s: float
    ranks: tuple[int, ...]
    ended_first: bool


def last_call(ranks: Sequence[RankRecording], mpi_s: float) -> LastCall | None:
    """The last call of ranks that did not finish; None if it took a small part of their time.

    Args:
        ranks: of the job.
        mpi_s: that all of them spent in MPI.
    """
    inside = [one for one in ranks if one.open_call]
    if sum(one.open_s for one in inside) < _MOST * mpi_s or not inside:
        return None
    outside = [one for one in ranks if not one.open_call]
    if 2 * len(outside) > len(ranks):
        return None
    ends_s = [one.until_unix_s or one.start_unix_s for one in outside]
    first_end_s = min(one.until_unix_s or one.start_unix_s for one in inside)
    (operation, _), *_ = Counter(one.open_call for one in inside).most_common(1)
    return LastCall(
        operation,
        max(one.open_s for one in inside),
        tuple(one.rank for one in outside),
        bool(ends_s) and max(ends_s) < first_end_s - _LATER_S,
    )
