"""The part of an exchange that backward cannot hide.

For a model whose layers were timed, by simulation: gradients are exchanged in the order in which
they become ready, one after the other, so that

    start of k = max(end of k - 1, ready of k)

and the part that ends after backward is exposed. For a recording without layers, from its hidden
communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hvprof.analysis.limits.compute import Gradient


class Overlap(Protocol):
    """Returns the exposed part of an exchange."""

    def exposed_s(self, exchange_s: float, backward_s: float) -> float:
        """Seconds of the exchange that remain after a backward pass of the given length."""


@dataclass(frozen=True)
class LayerOverlap:
    """Overlap with gradients that become ready one after the other."""

    gradients: Sequence[Gradient]

    def exposed_s(self, exchange_s: float, backward_s: float) -> float:
        """Return the seconds after backward; each gradient takes its share by bytes."""
        byte_s = exchange_s / sum(one.message_bytes for one in self.gradients)
        end_s = 0.0
        for one in self.gradients:
            end_s = max(end_s, one.ready * backward_s) + one.message_bytes * byte_s
        return max(0.0, end_s - backward_s)


@dataclass(frozen=True, slots=True)
class RecordedOverlap:
    """Overlap as it was recorded.

    Communication that was exposed although backward was long enough was ready too late, and grows
    with the exchange. If an exchange becomes longer than the time in which it was hidden, the
    excess is exposed.

    Attributes:
        late: share of the exchange that was exposed although backward was long enough.
        room: share of backward in which it can be hidden.
    """

    late: float
    room: float

    def exposed_s(self, exchange_s: float, backward_s: float) -> float:
        """Return the seconds that backward does not hide."""
        return max(self.late * exchange_s, exchange_s - self.room * backward_s)


def recorded_overlap(exposed_s: float, exchange_s: float, backward_s: float) -> RecordedOverlap:
    """Return the overlap of a recorded step, `exposed_s` of whose exchange were exposed."""
    if not exchange_s or not backward_s:
        return RecordedOverlap(1.0, 0.0)
    hidden_s = exchange_s - exposed_s
    room = hidden_s / backward_s if exchange_s >= backward_s else 1.0
    return RecordedOverlap(exposed_s / exchange_s, room)
