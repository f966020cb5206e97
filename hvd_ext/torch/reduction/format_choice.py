"""The format of gradients between nodes: the requested one, or the choice of a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hvd_ext.arena.bucket_cost import measure_bucket
from hvd_ext.arena.buckets import BucketChoice, BucketCost, choose_buckets
from hvd_ext.compression.formats import CANDIDATES, NONE, Format
from hvd_ext.units import format_seconds

if TYPE_CHECKING:
    from hvd_ext.arena.config import ArenaConfig
    from hvd_ext.arena.layout import ParameterSpec

# A format that loses more precision must be faster by more than this.
_NEAR_THE_BEST = 1.05


class FormatChoice:
    """The format of one optimizer's gradients between nodes, and the reason for it.

    Attributes:
        format: the format in use: none, until ranks have agreed on the requested one.
    """

    def __init__(self, asked: Format | str, config: ArenaConfig, between_nodes: bool) -> None:
        """Nothing is measured yet.

        Args:
            asked: a format; or AUTO, to choose by measurement.
            config: how the exchanges are made that are measured.
            between_nodes: gradients travel there at all.
        """
        self.format = NONE
        self.asked = asked.name if isinstance(asked, Format) else asked
        self._fixed = asked if isinstance(asked, Format) else None
        self._config, self._topology = config, config.topology
        self._between_nodes = between_nodes
        self._reason: str | None = None  # until one is chosen
        self._waits_for_buckets = False

    def choose(self, message_bytes: int, may_rebuild: bool) -> None:
        """Choose the first arena's format; the first call is collective, later ones do nothing.

        Args:
            message_bytes: maximum of its buckets.
            may_rebuild: whether buckets will be chosen by measurement, in `choose_buckets`.
        """
        if self._reason is not None or self._waits_for_buckets:
            return
        if self._topology.one_node:
            self._reason = "one node: nothing is compressed"
        elif not self._between_nodes:
            self._reason = "gradients stay within a node"
        elif may_rebuild and (self._fixed is None or self._fixed.has_residual):
            # A residual would have to move when buckets are rebuilt.
            self._waits_for_buckets = True
        elif self._fixed:
            self.format, self._reason = self._fixed, self._fixed.about
        else:
            costs = {f: self._measure(f).time_s(message_bytes) for f in CANDIDATES}
            number = self._topology.world.bcast(_least_lossy(list(costs.values())))
            self.format = CANDIDATES[number]
            self._reason = "a bucket takes " + _join(list(costs.values()))

    def choose_buckets(self, specs: list[ParameterSpec], ready_s: list[float]) -> BucketChoice:
        """Choose buckets by measurement, and the format with them; collective.

        Args:
            specs: the parameters.
            ready_s: when each gradient was ready on the last rank.

        Returns:
            Rank 0's choice on every rank, so that rounding cannot make two ranks cut differently.
        """
        candidates = (self._fixed,) if self._fixed else CANDIDATES
        if self._topology.one_node or not self._between_nodes:
            candidates = (NONE,)
        choices = [choose_buckets(specs, ready_s, self._measure(format)) for format in candidates]
        exposed_s = [choice.exposed_s for choice in choices]
        best = _least_lossy(exposed_s)
        number, choice = self._topology.world.bcast((best, choices[best]))
        self.format, self._waits_for_buckets = candidates[number], False
        if self.format is self._fixed:
            self._reason = self.format.about
        if len(choices) > 1:
            self._reason = (
                f"the exchange should be over after the last gradient in {_join(exposed_s)}"
            )
        found: BucketChoice = choice
        return found

    def explain(self) -> str:
        """Report the format and the reason, in one line."""
        if not self._waits_for_buckets:
            return f"compression: {self.format.name}: {self._reason}"
        if self._fixed:
            return (
                f"compression: {self._fixed.name}, once buckets are measured: {self._fixed.about}"
            )
        return f"compression: {self.format.name}: not measured yet"

    def _measure(self, format: Format) -> BucketCost:
        return measure_bucket(replace(self._config, format=format), self._between_nodes)


def _join(times_s: Sequence[float]) -> str:
    pairs = zip(CANDIDATES, times_s, strict=True)
    return ", ".join(f"{format_seconds(time_s)} with {f.name}" for f, time_s in pairs)


def _least_lossy(times_s: Sequence[float]) -> int:
    """Return the first format that is near the best."""
    best_s = min(times_s)
    return next(i for i, time_s in enumerate(times_s) if time_s <= best_s * _NEAR_THE_BEST)
