"""Which carrier each bucket of a DeviceArena takes, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.allreduce.carrier_names import MPI, NCCL, carriers_of, usual_carrier
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

    def use_no_nccl(self) -> None:
        """Replace NCCL, because it cannot be used."""
        self.names = [self._usual if name == NCCL else name for name in self.names]

    def recorded(self, index: int) -> str:
        """Return the name of a bucket's carrier in recordings."""
        return self._offered[self.names[index]]

    def explain(self) -> str:
        """Return how many buckets the carriers take, and the reason for the largest one."""
        by_nccl, by_mpi = (self.names.count(name) for name in (NCCL, MPI))
        refused = nccl.refusal(self._config.topology, self._device)
        if refused and not by_mpi:
            return f"NCCL was not compared: {refused}"
        if self._config.topology.world.size == 1:
            return "one rank: nothing to carry"
        largest = max(self._buckets, key=lambda bucket: bucket.message_bytes)
        named = self._named(largest)
        if named not in self._offered:
            return "NCCL was not compared: no row of the table is for device memory"
        reason = self._config.table.explain(
            *self._situation, largest.message_bytes, DTYPES[largest.dtype].dtype_class
        )
        if refusal := self._refusal(named, largest):
            reason = f"{self._usual}, not {named}: {refusal}"
        buckets = f"{counted(by_nccl, 'bucket')} by NCCL"
        if by_mpi:
            buckets += f", {counted(by_mpi, 'bucket')} by MPI from device memory"
        return f"{buckets}; the largest: {reason}"

    def _of(self, bucket: Bucket) -> str:
        named = self._named(bucket)
        alone = self._config.topology.world.size == 1
        if alone or named not in self._offered or self._refusal(named, bucket):
            return self._usual
        return named

    def _named(self, bucket: Bucket) -> str:
        """The carrier that the table names; an algorithm of the host's if it has no row for it."""
        return self._config.table.choose(
            *self._situation, bucket.message_bytes, DTYPES[bucket.dtype].dtype_class
        )

    def _refusal(self, named: str, bucket: Bucket) -> str:
        """Why a bucket does not take the carrier that is named for it; empty if it does."""
        half = DTYPES[bucket.dtype].dtype_class == "half"
        if named == NCCL and half:
            return "NCCL would round 16 bits at each sum"
        if named in (NCCL, MPI) and self._config.format is not NONE and not half:
            return f"{self._config.format.name} is coded on the host"
        return ""
