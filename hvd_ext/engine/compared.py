"""A rank's collective as two numbers, which ranks compare when they meet.

The numbers are its bytes, and a number of the interface (which has words for it) combined with the
current step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hvd_ext.errors import HvdExtError, MismatchError
from hvd_ext.job.stalls import Hosts, name_ranks

# An interface's words for bytes and a number, given the group's global ranks.
Describe = Callable[[int, int, Sequence[int]], str]


class AgreedError(MismatchError):
    """An error that all ranks raise, so that they stay in step."""


# The number of a rank whose collective was refused or failed.
FAILED = 2**64 - 1
# The steps of a collective.
STEPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier")
_STEP_AT, _STEP_BITS = 8, 4  # bits that an interface leaves empty


def step(name: str) -> int:
    """Return the number of one of STEPS, to be combined with the interface's."""
    return STEPS.index(name) << _STEP_AT


def step_of(number: int) -> str:
    """Return the step in a combined number."""
    return STEPS[number >> _STEP_AT & (1 << _STEP_BITS) - 1]


def differ(said: Sequence[str], ranks: Sequence[int], hosts: Hosts) -> MismatchError:
    """Make the error for ranks that met in different collectives, the same on all of them.

    Args:
        said: each rank's collective in words; they differ.
        ranks: global numbers of the group's ranks.
        hosts: host name of every rank of the world.
    """
    others = next(text for text in said if text != said[0])

    def called(text: str) -> str:
        them = [rank for rank, theirs in zip(ranks, said, strict=True) if theirs == text]
        return f"{name_ranks(them, hosts)} called {text}"

    return MismatchError(
        f"{called(said[0])}, and {called(others)}: make the same calls in the same order on every "
        "rank, and give a thread that communicates, such as async_save()'s, its own process group"
    )


def failed(name: str, why: Callable[[int], str], ranks: Sequence[int], late: Sequence[int]) -> str:
    """Name the ranks that failed before they reached a collective.

    Args:
        name: name of the collective.
        why: returns the reason of a rank of the group.
        ranks: global numbers of the group's ranks.
        late: numbers in the group of those that failed.
    """
    first = late[0]
    return f"{name}: rank {ranks[first]} failed: {why(first)}"


def check_bytes(name: str, every: Sequence[Sequence[int]], ranks: Sequence[int]) -> None:
    """Compare the bytes that ranks send each other with those that they expect.

    Args:
        name: name of the collective.
        every: for each rank, the bytes that it sends to each rank, then those that it expects from
            each.
        ranks: global numbers of the group's ranks.

    Raises:
        MismatchError: they differ; the ranks stay in step.
    """
    size = len(every)
    for giver, numbers in enumerate(every):
        taken = [theirs[size + giver] for theirs in every]
        if list(numbers[:size]) == taken:
            continue
        taker = next(rank for rank in range(size) if numbers[rank] != taken[rank])
        raise AgreedError(
            f"{name}: rank {ranks[giver]} gives rank {ranks[taker]} {numbers[taker]} bytes, "
            f"and that one expects {taken[taker]}: make the sizes match"
        )


def one_line(error: BaseException) -> str:
    """Return an error as text for other ranks."""
    text, name = str(error).partition("\n")[0], type(error).__name__
    return text if isinstance(error, HvdExtError) else f"{name}: {text}" if text else name
