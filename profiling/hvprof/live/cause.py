"""The cause of a hang."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """Why ranks are blocked.

    Attributes:
        kind: "late", "stopped", "gone", "finalized", "not_started" or "disk" of ranks for which
            others wait; "mismatch" of collectives; "deadlock" of ranks that wait in a circle;
            "any_source" if ranks wait for a message of any rank; "link" if data wait to be sent
            between hosts; "transfer" if every rank has reached a collective that does not end;
            "unknown".
        ranks: the ranks to check.
        waiting: the ranks that wait for them, directly or not.
        blocked_s: how long the first one has waited.
        sentence: the cause in words.
    """

    kind: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    blocked_s: float
    sentence: str
