"""Which carrier each bucket of a DeviceArena takes, and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hvd_ext.allreduce.carrier_names import (
    MPI,
    NCCL,
    PAIRWISE,
    carriers_of,
    in_any_order,
    is_pairwise,
    usual_carrier,
)
from hvd_ext.arena.cuda import nccl
from hvd_ext.compression.formats import NONE
from hvd_ext.dtypes import DTYPES
from hvd_ext.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hvd_ext.arena.config import ArenaConfig
    from hvd_ext.arena.layout import Bucket


class Choice:
    """The carriers of some buckets, by the table; the same on every rank.

    Attributes:
        names: name of each bucket's carrier, as in tables.
    """

    def __init__(self, config: ArenaConfig, buckets: Sequence[Bucket], device: int) -> None:
        """Choose them.

        Args:
            config: how the arena exchanges.
            buckets: of the arena.
            device: ordinal of this rank's GPU.
        """
        self._config, self._buckets, self._device = config, buckets, device
        topology = config.topology
        self._offered = carriers_of(topology.nodes)
        self._usual = usual_carrier(topology.nodes)
        self._situation = topology.nodes, topology.node.size, "device"
        self.names = [self._of(bucket) for bucket in buckets]

    def uses(self, name: str) -> bool:
        """Whether a bucket takes IPC, NCCL, STAGED or MPI, in any order of peers."""
        return name in map(in_any_order, self.names)

    def use_no_nccl(self) -> None:
        """Replace NCCL, because it cannot be used."""
        self.names = [
            self._instead_of(name, bucket) if in_any_order(name) == NCCL else name
            for name, bucket in zip(self.names, self._buckets, strict=True)
        ]

    def recorded(self, index: int) -> str:
        """Return the name of a bucket's carrier in recordings."""
        return self._offered[self.names[index]]

    def explain(self) -> str:
        """Return how many buckets the carriers take, and the reason for the largest one."""
        topology = self._config.topology
        if topology.world.size == 1:
            return "one rank: nothing to carry"
        refused = nccl.refusal(topology, self._device)
        no_nccl = f"NCCL was not compared: {refused}" if refused else ""
        largest, name = max(
            zip(self._buckets, self.names, strict=True), key=lambda pair: pair[0].message_bytes
        )
        named = self._named(largest)
        if named not in self._offered:
            return no_nccl or "NCCL was not compared: no row of the table is for device memory"
        reason = self._config.table.explain(
            *self._situation, largest.message_bytes, DTYPES[largest.dtype].dtype_class
        )
        if name != named:
            reason = f"{name}, not {named}: {self._refusal(named, largest) or refused}"
        text = f"{self._counts()}; the largest: {reason}"
        return f"{text}\n{no_nccl}" if refused and NCCL not in named else text

    def _counts(self) -> str:
        """How many buckets take the carriers that are not the usual one."""
        carried = [in_any_order(name) for name in self.names]
        text = f"{counted(carried.count(NCCL), 'bucket')} by NCCL"
        if by_mpi := carried.count(MPI):
            text += f", {counted(by_mpi, 'bucket')} by MPI from device memory"
        if pairwise := sum(map(is_pairwise, self.names)):
            text += f", {counted(pairwise, 'bucket')} pairwise, with one peer of the node at a time"
        return text

    def _of(self, bucket: Bucket) -> str:
        named = self._named(bucket)
        if self._config.topology.world.size == 1 or named not in self._offered:
            return self._usual
        return self._instead_of(named, bucket) if self._refusal(named, bucket) else named

    def _instead_of(self, name: str, bucket: Bucket) -> str:
        """The usual carrier in the order of peers that was measured to be faster, or `name`'s."""
        given, other = self._usual, self._usual + PAIRWISE
        if is_pairwise(name):
            given, other = other, given
        us = self._config.table.measured_us(
            *self._situation, bucket.message_bytes, DTYPES[bucket.dtype].dtype_class
        )
        return min(given, other, key=lambda name: us.get(name, math.inf))

    def _named(self, bucket: Bucket) -> str:
        """The carrier that the table names; an algorithm of the host's if it has no row for it."""
        return self._config.table.choose(
            *self._situation, bucket.message_bytes, DTYPES[bucket.dtype].dtype_class
        )

    def _refusal(self, named: str, bucket: Bucket) -> str:
        """Why a bucket does not take the carrier that is named for it; empty if it does."""
        by = in_any_order(named)
        half = DTYPES[bucket.dtype].dtype_class == "half"
        if by == NCCL and half:
            return "NCCL would round 16 bits at each sum"
        if by in (NCCL, MPI) and self._config.format is not NONE and not half:
            return f"{self._config.format.name} is coded on the host"
        return ""
