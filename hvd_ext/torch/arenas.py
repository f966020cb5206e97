"""Makes an optimizer's arenas, the same on every rank."""

from __future__ import annotations

from typing import Any

import horovod.torch as horovod
import numpy as np
import torch

from hvd_ext import settings
from hvd_ext.arena.bucket_cost import measure_bucket
from hvd_ext.arena.buckets import choose_buckets
from hvd_ext.arena.cuda.arena import BUCKET_BYTES, DeviceArena
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import Layout, ParameterSpec, layout_buckets, layout_by_size
from hvd_ext.arena.protocol import Arena
from hvd_ext.shm.regions import WindowError
from hvd_ext.torch import lifecycle
from hvd_ext.torch.agreement import agree_on_layout, read_table
from hvd_ext.units import MIB, format_bytes

# Until it was measured when gradients are ready.
_FIRST_BUCKET_BYTES = 4 * MIB


class ArenaFactory:
    """Makes an optimizer's arenas, the same on every rank."""

    def __init__(self, op: Any, device: torch.device, on_host: type[HostArena] = HostArena) -> None:
        """Read what the user set, and wait for all ranks; collective.

        Args:
            op: Horovod's Average or Sum.
            device: where gradients are.
            on_host: the kind of arena in host memory.

        Raises:
            StallError: ranks did not reach this in time; names them.
        """
        self._device = device
        self._on_host = on_host
        self._bucket_bytes = settings.bucket_bytes()
        self._timeout_s = settings.stall_timeout_s()
        self._topology = lifecycle.topology()
        self._table = read_table(self._topology.world)
        self._scale = 1.0 / self._topology.world.size if op == horovod.Average else 1.0

    @property
    def may_rebuild(self) -> bool:
        """Whether the buckets may follow from measurement.

        The host does not know when a GPU has a gradient.
        """
        return self._bucket_bytes is None and self._device.type == "cpu"

    def first(self, specs: list[ParameterSpec]) -> tuple[Arena, str]:
        """An arena with buckets in the parameters' order, and the reason; collective.

        Raises:
            MismatchError: ranks differ in their parameters.
            WindowError: no arena could be made on some rank.
        """
        on_host = self._device.type == "cpu"
        most = self._bucket_bytes or (_FIRST_BUCKET_BYTES if on_host else BUCKET_BYTES)
        agree_on_layout(self._topology, specs, most, self._device.type, self._timeout_s)
        if not self._topology.homogeneous:
            raise WindowError("nodes have different numbers of ranks")
        reason = f"at most {format_bytes(most)} a bucket, last parameter first"
        if self._bucket_bytes is not None:
            reason = "as HVD_EXT_BUCKET_BYTES says, last parameter first"
        elif on_host:
            reason = f"not measured yet: {reason}"
        self._begun = lifecycle.begun_steps()
        return self._make(layout_by_size(specs, most)), reason

    def rebuilt(self, specs: list[ParameterSpec], ready_s: list[float]) -> tuple[Arena, str]:
        """An arena with buckets that follow from measurement, and the reason; collective.

        Args:
            specs: the parameters.
            ready_s: when this rank had the gradient of each.

        Raises:
            WindowError: no arena could be made on some rank.
        """
        cost = measure_bucket(self._topology, self._table, self._timeout_s)
        world = self._topology.world
        everybodys = world.gather(ready_s)
        latest = np.max(everybodys, axis=0).tolist() if everybodys else ready_s
        # Rank 0's word counts, so that no rounding can have two ranks cut differently.
        choice = world.bcast(choose_buckets(specs, latest, cost))
        return self._make(layout_buckets(specs, choice.groups)), choice.reason

    def named_by_any(self, indices: list[int]) -> list[int]:
        """What any rank names, in ascending order; collective."""
        return sorted(set().union(*self._topology.world.allgather(indices)))

    def begin_step(self, optimizer: int) -> None:
        """Say that this rank begins a step, to those that have joined."""
        if self._begun is not None:
            self._begun.begin(optimizer)

    def _make(self, layout: Layout) -> Arena:
        if self._device.type == "cuda":
            index = self._device.index
            return DeviceArena(
                self._topology,
                layout,
                self._scale,
                self._timeout_s,
                index,
                lambda: torch.cuda.current_stream(index).cuda_stream,
            )
        return self._on_host(self._topology, layout, self._scale, self._table, self._timeout_s)
