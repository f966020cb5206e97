"""Ranks that were killed or still run: the call in which they were at the end."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hvprof.model import RankRecording

_MOST = 0.5
# Its ranks are the reason why others did not finish; no rank waits for them.
_ABORT = "abort"
# The interval of signs of life is less than half of this time.
_LATER_S = 0.6


class Went(str, enum.Enum):
    """The states of the ranks for which the others waited."""

    OUTSIDE = "outside"
    ENDED = "ended"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class LastCall:
    """The call in which most ranks were at the end.

    Attributes:
        operation: the most frequent one.
        time_s: how long the first rank had been in it.
        ranks: ranks that were outside of MPI then, or ended the job; may be empty.
        how: their state.
    """

    operation: str
    time_s: float
    ranks: tuple[int, ...]
    how: Went


def last_call(ranks: Sequence[RankRecording], mpi_s: float) -> LastCall | None:
    """Return the last call of ranks that did not finish; None if it took little of their time.

    Args:
        ranks: ranks of the job.
        mpi_s: time that all of them spent in MPI.
    """
    inside = [one for one in ranks if one.open_call and one.open_call != _ABORT]
    if sum(one.open_s for one in inside) < _MOST * mpi_s or not inside:
        return None
    outside = [one for one in ranks if one not in inside]
    if 2 * len(outside) > len(ranks):
        return None
    ends_s = [one.until_unix_s or one.start_unix_s for one in outside]
    first_end_s = min(one.until_unix_s or one.start_unix_s for one in inside)
    (operation, _), *_ = Counter(one.open_call for one in inside).most_common(1)
    how = Went.OUTSIDE
    if aborting := [one for one in outside if one.open_call == _ABORT]:
        outside, how = aborting, Went.ABORTED
    elif ends_s and max(ends_s) < first_end_s - _LATER_S:
        how = Went.ENDED
    last = max(one.open_s for one in inside)
    return LastCall(operation, last, tuple(one.rank for one in outside), how)
