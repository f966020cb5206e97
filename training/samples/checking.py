"""Checks the images that a run will read, before its first step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType

from hvd_ext.cli import progress
from hvd_ext.data import map_ahead
from hvd_ext.errors import UsageError
from hvd_ext.units import counted
from training import ranks

_MOST_NAMED = 10
_BATCH = 64


def find_unusable(
    hvd: ModuleType, count: int, check: Callable[[int], object], workers: int = 4
) -> dict[int, str]:
    """Images that cannot be used, and why; one rank checks each image. A collective.

    Args:
        hvd: the exchange.
        count: number of images.
        check: raises UsageError for one that cannot be used; is called on threads.
        workers: number of threads.
    """

    def problem(number: int) -> tuple[int, str]:
        try:
            check(number)
        except UsageError as error:
            return number, str(error)
        return number, ""

    mine = range(hvd.rank(), count, hvd.size())
    batches = (mine[k : k + _BATCH] for k in range(0, len(mine), _BATCH))
    found: dict[int, str] = {}
    with progress("checking images", len(mine), shown=hvd.rank() == 0) as advance:
        for batch in map_ahead(problem, batches, workers=workers, ahead=2):
            found |= {number: text for number, text in batch if text}
            advance(batch[-1][0] // hvd.size() + 1)
    return everyones(hvd, found)


def everyones(hvd: ModuleType, mine: dict[int, str]) -> dict[int, str]:
    """The images that ranks cannot use, of all ranks. A collective."""
    parts: list[dict[int, str]] = hvd.allgather_object(mine, name="unusable")
    return dict(sorted(item for part in parts for item in part.items()))


def describe(unusable: Mapping[int, str], count: int) -> str:
    """Images that cannot be used, as text of one line."""
    named = list(unusable.values())[:_MOST_NAMED]
    rest = len(unusable) - len(named)
    more = f"; and {rest} more" if rest else ""
    return f"{len(unusable)} of {counted(count, 'image')} cannot be used: {'; '.join(named)}{more}"


def refuse_unusable(
    hvd: ModuleType, program: str, unusable: Mapping[int, str], count: int, *, skip: bool = False
) -> None:
    """End the program if there are images that cannot be used. A collective.

    Args:
        hvd: the exchange.
        program: the name that errors begin with.
        unusable: result of `find_unusable`, the same on all ranks.
        count: number of images.
        skip: only report them.

    Raises:
        SystemExit: on every rank; rank 0 has named the first ten.
    """
    if not unusable:
        return
    if skip:
        if hvd.rank() == 0:
            print(f"{program}: {describe(unusable, count)}", file=sys.stderr, flush=True)
        return
    with ranks.collective_errors(hvd, program):
        raise UsageError(describe(unusable, count))
