"""Which collective a rank is in, as two numbers that ranks compare when they meet.

Its bytes, and a number of the door's, for which the door has words, with the step that it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hvd_ext.errors import HvdExtError, MismatchError
from hvd_ext.job.stalls import Hosts, name_ranks

# A door's words for bytes and a number, given the group's global ranks.
Describe = Callable[[int, int, Sequence[int]], str]


class AgreedError(MismatchError):
    """Raised on all ranks alike, so that they stay in step."""


# A refused or failed collective, as a rank's number.
FAILED = 2**64 - 1
# How a collective is done, which it may be in several steps.
STEPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier")
_STEP_AT, _STEP_BITS = 8, 4  # which a door leaves empty


def step(name: str) -> int:
    """The number of one of STEPS, to be combined with the door's."""
    return STEPS.index(name) << _STEP_AT


def step_of(number: int) -> str:
    """The step in a combined number."""
    return STEPS[number >> _STEP_AT & (1 << _STEP_BITS) - 1]


def differ(said: Sequence[str], ranks: Sequence[int], hosts: Hosts) -> MismatchError:
    """The error for ranks that have met in different collectives, the same on all of them.

    Args:
        said: each rank's collective, in words; different.
        ranks: global, of the group's.
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
    """Say who has failed before it reached a collective.

    Args:
        name: of the collective.
        why: for a rank of the group.
        ranks: global, of the group's.
        late: those that have failed, in the group.
    """
    first = late[0]
    return f"{name}: rank {ranks[first]} failed: {why(first)}"


def check_bytes(name: str, every: Sequence[Sequence[int]], ranks: Sequence[int]) -> None:
    """Compare what ranks give each other with what they expect.

    Args:
        name: of the collective.
        every: of each rank, how many bytes it gives to each, then how many it expects from each.
        ranks: global, of the group's.

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
    """An error as it is reported to other ranks."""
    text, name = str(error).partition("\n")[0], type(error).__name__
    return text if isinstance(error, HvdExtError) else f"{name}: {text}" if text else name
