"""Known patterns of communication, in which a rank that waits is not late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hvprof.analysis.waiting.call_costs import CallCost
from hvprof.analysis.waiting.rank_time import RankTime
from hvprof.model import RankRecording

# The share of a rank's waiting that makes a partner its main one; the share of the others' waiting
# that an exchange must explain.
_MOSTLY, _EXPLAINS, _MOST = 0.8, 1 / 3, 0.5
# Messages of a chain, at least, and how much longer the first sender is blocked than the last.
_LINKS, _LONGER = 3, 1.5
# With more pieces of work for each rank than these, the last one is short.
_FEW_PIECES = 20


@dataclass(frozen=True, slots=True)
class Apart:
    """Ranks that exchange data among themselves while the others wait for them.

    Attributes:
        operation: their longest operation.
        time_s: time of a rank in exchanges among themselves.
    """

    ranks: tuple[int, ...]
    operation: str
    time_s: float


def apart(times: Sequence[RankTime], costs: Sequence[CallCost]) -> Apart | None:
    """Ranks whose exchanges on a communicator of a part of the ranks delay the others."""
    of_rank: dict[int, float] = defaultdict(float)
    of_operation: dict[str, float] = defaultdict(float)
    for one in costs:
        if 1 < one.cell.size < len(times):
            of_rank[one.rank] += one.cell.time_s - one.wait_s
            of_operation[one.cell.operation] += one.cell.time_s - one.wait_s
    busy = {one.rank: one.outside_s + of_rank[one.rank] for one in times}
    middle_s = (min(busy.values()) + max(busy.values())) / 2
    late = tuple(rank for rank, time_s in busy.items() if time_s > middle_s)
    others = busy.keys() - {*late}
    if not late or 2 * len(late) > len(times):
        return None
    waited_s = max(busy.values()) - sum(busy.values()) / len(busy)
    more_s = _mean(of_rank, late) - _mean(of_rank, others)
    mpi_s = sum(one.mpi_s for one in times) / len(times)
    if waited_s < _EXPLAINS * mpi_s or more_s < _MOST * (_mean(busy, late) - _mean(busy, others)):
        return None
    return Apart(late, max(of_operation, key=of_operation.__getitem__), _mean(of_rank, late))


def _mean(values: Mapping[int, float], ranks: Sequence[int] | set[int]) -> float:
    return sum(values.get(rank, 0.0) for rank in ranks) / len(ranks) if ranks else 0.0


@dataclass(frozen=True, slots=True)
class Master:
    """A rank that distributes work to all others, and the pieces that each of them gets."""

    rank: int
    pieces: float


def master(ranks: Sequence[RankRecording]) -> Master | None:
    """Find the only partner of all other ranks, from which they get unequal numbers of pieces.

    None if there is none, or if there are many pieces. Three ranks might also be a chain.
    """
    if len(ranks) < 4:
        return None
    for first in ranks:
        workers = [one for one in ranks if one is not first]
        both = {(first.rank, "from"), (first.rank, "to")}
        if all({(p.rank, p.direction) for p in one.partners} == both for one in workers):
            taken = [p.messages for one in workers for p in one.partners if p.direction == "from"]
            pieces = sum(taken) / len(workers)
            few = pieces <= _FEW_PIECES and len({*taken}) > 1
            return Master(first.rank, pieces) if few else None
    return None


def is_pipeline(ranks: Sequence[RankRecording]) -> bool:
    """Whether each rank waits only for the one before it, and the first for none."""
    if len(ranks) < 3:
        return False
    for place, one in enumerate(ranks):
        received = {p.rank: p.blocked_s for p in one.partners if p.direction == "from"}
        if place == 0 and sum(received.values()) > 0:
            return False
        before = received.get(ranks[place - 1].rank, 0.0)
        if place and before <= _MOSTLY * sum(received.values()):
            return False
    return True


def is_send_chain(ranks: Sequence[RankRecording]) -> bool:
    """Whether each rank sends to the next before it receives, which serializes messages.

    The last rank receives first. The farther a rank is from it, the longer its sends are blocked.
    """
    blocked: dict[int, dict[str, float]] = {}
    after: dict[int, int] = {}
    for one in ranks:
        of_direction = blocked[one.rank] = {"from": 0.0, "to": 0.0}
        sent: dict[int, float] = {}
        for partner in one.partners:
            of_direction[partner.direction] += partner.blocked_s
            if partner.direction == "to":
                sent[partner.rank] = sent.get(partner.rank, 0.0) + partner.blocked_s
        if sent and max(sent.values()) > _MOSTLY * sum(sent.values()) > 0:
            after[one.rank] = max(sent, key=sent.__getitem__)
    firsts = after.keys() - {*after.values()}
    # In a pipeline, ranks wait to receive.
    receiving_s = sum(one["from"] for one in blocked.values())
    if len(after) < _LINKS or receiving_s > sum(one["to"] for one in blocked.values()):
        return False
    for first in firsts:
        chain = [first]
        while chain[-1] in after and len(chain) <= len(after):
            chain.append(after[chain[-1]])
        times = [blocked.get(rank, {"to": 0.0})["to"] for rank in chain]
        falls = all(before > _MOSTLY * then for before, then in pairwise(times))
        # Ranks that are late alternately delay all senders equally.
        longer = times[0] > _LONGER * times[-2]
        if len(chain) > _LINKS and 2 * len(chain) > len(ranks) and falls and longer:
            return True
    return False
