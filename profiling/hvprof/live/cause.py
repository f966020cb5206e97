"""The cause of a hang."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """Why ranks are blocked.

    Attributes:
        kind: "late", "stopped", "gone", "finalized", "not_started" or "disk" of ranks for which
            others wait; "mismatch" of collectives; "deadlock" of ranks that wait in a circle;
            "any_source" where any rank's message is waited for; "link" where data wait to be
            sent between hosts; "transfer" where every rank has reached a collective that does not
            end; "unknown".
        ranks: the ranks to look at.
        waiting: the ranks that wait for them, directly or not.
        blocked_s: for how long the first has waited.
        sentence: all that in words.
    """

    kind: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    blocked_s: float
    sentence: str
