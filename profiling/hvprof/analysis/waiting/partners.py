"""Point-to-point messages between pairs of ranks, and their distances."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from hvprof.model import Recording

_MOST_GROUPS = 32


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank's calls that were blocked on messages of one partner.

    Attributes:
        rank, partner: the rank that waits, and its partner.
        direction: "from" for receives, "to" for sends.
        blocked_s: total time.
        messages, message_bytes: messages from or to the partner.
    """

    rank: int
    partner: int
    direction: str
    blocked_s: float
    messages: int
    message_bytes: int


@dataclass(frozen=True, slots=True)
class Partners:
    """Point-to-point messages of a job's ranks.

    Attributes:
        size: number of ranks of the job.
        sent: (messages, bytes) by (sender, receiver), of world ranks, as the senders count.
        unknown: (messages, bytes) to partners beyond the first 256 of a rank.
        waits: waits, the longest first.
    """

    size: int
    sent: Mapping[tuple[int, int], tuple[int, int]]
    unknown: tuple[int, int]
    waits: tuple[Wait, ...]

    def groups(self) -> tuple[list[str], list[list[int]]]:
        """Bytes between groups of neighboring ranks, at most 32, and their names.

        The rows are the senders.
        """
        each = math.ceil(self.size / _MOST_GROUPS)
        firsts = range(0, self.size, each)
        lasts = [min(first + each, self.size) - 1 for first in firsts]
        names = [
            str(first) if first == last else f"{first}-{last}"
            for first, last in zip(firsts, lasts, strict=True)
        ]
        sums = [[0] * len(names) for _ in names]
        for (sender, receiver), (_, message_bytes) in self.sent.items():
            sums[sender // each][receiver // each] += message_bytes
        return names, sums

    def distances(self) -> list[tuple[int, int, int]]:
        """(distance, messages, bytes), most bytes first.

        The distance of two ranks is that of their numbers, the shorter way round.
        """
        sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for (sender, receiver), of_pair in self.sent.items():
            apart = abs(sender - receiver)
            total = sums[min(apart, self.size - apart)]
            total[:] = [before + more for before, more in zip(total, of_pair, strict=True)]
        found = [(distance, *amounts) for distance, amounts in sums.items()]
        return [(d, m, b) for d, m, b in sorted(found, key=lambda one: (-one[2], one[0]))]


def partners(recording: Recording) -> Partners | None:
    """Return the point-to-point messages of a job; None if there were none."""
    sent: dict[tuple[int, int], tuple[int, int]] = {}
    unknown = [0, 0]
    waits = []
    for rank in recording.ranks:
        for one in rank.partners:
            known = 0 <= one.rank < rank.size
            if one.direction == "to" and known:
                sent[rank.rank, one.rank] = (one.messages, one.message_bytes)
            elif one.direction == "to":
                unknown[0] += one.messages
                unknown[1] += one.message_bytes
            if one.blocked_s and known:
                of_wait = (one.direction, one.blocked_s, one.messages, one.message_bytes)
                waits.append(Wait(rank.rank, one.rank, *of_wait))
    if not sent and not unknown[0] and not waits:
        return None
    waits.sort(key=lambda one: -one.blocked_s)
    return Partners(recording.ranks[0].size, sent, (unknown[0], unknown[1]), tuple(waits))
