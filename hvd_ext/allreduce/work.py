"""The work of an allreduce, counted: the result of the cost formulas."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """The work of an allreduce on its critical path.

    Attributes:
        messages: how many, one after the other.
        sent_bytes: how many, one after the other.
        reduced_bytes: how many are combined.
    """

    messages: float
    sent_bytes: float
    reduced_bytes: float
