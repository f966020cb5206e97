"""What an allreduce does, counted: what the cost formulas give."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """What an allreduce does on its critical path.

    Attributes:
        messages: how many, one after the other.
        sent_bytes: how many, one after the other.
        reduced_bytes: how many are combined.
    """

    messages: float
    sent_bytes: float
    reduced_bytes: float
