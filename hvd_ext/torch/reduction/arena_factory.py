"""Makes an optimizer's arenas, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from hvd_ext import variables
from hvd_ext.allreduce.agreed import read_table
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda.arena import BUCKET_BYTES, DeviceArena
from hvd_ext.arena.cuda.carriers import prepare
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import Layout, ParameterSpec, layout_buckets, layout_by_size
from hvd_ext.arena.protocol import Arena
from hvd_ext.compression.formats import NONE, Format
from hvd_ext.errors import UsageError
from hvd_ext.job.stalls import name_ranks
from hvd_ext.schedules import EVERY_STEP, ONE_STEP_LATE
from hvd_ext.shm.regions import WindowError
from hvd_ext.tensors import current_stream
from hvd_ext.torch import horovods
from hvd_ext.torch.agreement import agree_on_layout
from hvd_ext.torch.job.begun_steps import BegunSteps
from hvd_ext.torch.parameters import NamedParameters
from hvd_ext.torch.reduction.format_choice import FormatChoice
from hvd_ext.torch.reproducible.order import dtype_of_sum, require_consecutive_ranks
from hvd_ext.torch.sync.rounds import Rounds
from hvd_ext.units import MIB, format_bytes

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.job.topology import Topology
    from hvd_ext.torch.request import Request

# Used until the times at which gradients are ready have been measured.
_FIRST_BUCKET_BYTES = 4 * MIB


class ArenaFactory:
    """Makes an optimizer's arenas, the same on every rank.

    Attributes:
        compression: the format between nodes.
        slots: slots of a reproducible step; 0: sums are in any order.
    """

    def __init__(
        self,
        request: Request,
        topology: Topology,
        begun_steps: Callable[[], BegunSteps | None],
        device: torch.device,
        on_host: type[HostArena],
    ) -> None:
        """Read the user's settings, and wait for all ranks; collective.

        Args:
            request: checked. Where nodes exchange after some steps, gradients stay within each.
            topology: this job's nodes and ranks.
            begun_steps: gives where ranks say that they begin a step; collective.
            device: where gradients are.
            on_host: the kind of arena in host memory.

        Raises:
            StallError: ranks did not reach this in time; names them.
        """
        self._device = device
        self._on_host = on_host
        self._bucket_bytes = variables.BUCKET_BYTES.read()
        self._topology, self._begun_steps = topology, begun_steps
        self._timeout_s = variables.STALL_TIMEOUT_S.read()
        self._config = ArenaConfig(topology, read_table(topology.world), self._timeout_s)
        self._asked_sync = request.schedule
        self._sync = EVERY_STEP if topology.one_node else request.schedule
        self._between_nodes = isinstance(self._sync, str)
        self._asked_format = request.format
        self.compression = FormatChoice(request.format, self._config, self._between_nodes)
        self.slots = request.slots
        summed = self.slots or (topology.world if self._between_nodes else topology.node).size
        self._scale = 1.0 / summed if request.op == horovods.Average else 1.0

    @property
    def may_rebuild(self) -> bool:
        """Whether buckets may be chosen by measurement.

        The host does not know when a GPU has a gradient.
        """
        return self._bucket_bytes is None and self._device.type == "cpu" and not self.is_late

    def first(self, specs: list[ParameterSpec]) -> tuple[Arena, str]:
        """Make an arena with buckets in parameter order, with the reason; collective.

        Raises:
            MismatchError: ranks differ in their parameters.
            WindowError: no arena could be made on some rank.
        """
        on_host = self._device.type == "cpu"
        most = self._bucket_bytes or (_FIRST_BUCKET_BYTES if on_host else BUCKET_BYTES)
        asked = {"compression": self.compression.asked, "sync": str(self._asked_sync)}
        asked["reproducible"] = str(self.slots)
        agree_on_layout(self._topology, specs, most, self._device.type, asked, self._timeout_s)
        if not self._topology.homogeneous:
            raise WindowError("nodes have different numbers of ranks")
        if self.slots:
            require_consecutive_ranks(self._topology)
        self.compression.choose(self._bucket_bytes or _FIRST_BUCKET_BYTES, self.may_rebuild)
        reason = f"at most {format_bytes(most)} a bucket, last parameter first"
        if self._bucket_bytes is not None:
            reason = "as HVD_EXT_BUCKET_BYTES says, last parameter first"
        elif on_host:
            reason = reason if self.is_late else f"not measured yet: {reason}"
        self._begun = self._begun_steps()
        return self._make(layout_by_size(self._summed(specs), most)), reason

    def rebuilt(self, specs: list[ParameterSpec], ready_s: list[float]) -> tuple[Arena, str]:
        """Make an arena with buckets by measurement, with the reason; collective.

        Args:
            specs: the parameters.
            ready_s: when each gradient was ready on this rank.

        Raises:
            WindowError: no arena could be made on some rank.
        """
        world = self._topology.world
        everybodys = world.gather(ready_s)
        latest = np.max(everybodys, axis=0).tolist() if everybodys else ready_s
        specs = self._summed(specs)
        choice = self.compression.choose_buckets(specs, latest)
        return self._make(layout_buckets(specs, choice.groups)), choice.reason

    def explain(self) -> str:
        """Report the format of gradients between nodes, when they are exchanged, and why."""
        said = self.compression.explain()
        if self._sync != self._asked_sync:
            said += f"\nsync: {EVERY_STEP}: one node"
        elif self._sync == ONE_STEP_LATE:
            said += f"\nsync: {ONE_STEP_LATE}: gradients of a step are used in the next one"
        return said

    def rounds(self, named_parameters: NamedParameters) -> Rounds | None:
        """Make the rounds in which nodes exchange weights, if not gradients; collective."""
        if isinstance(self._sync, str):
            return None
        if isinstance(self._asked_format, Format) and self._asked_format.rank:
            raise UsageError(
                f"compression={self.compression.asked!r} with sync={str(self._sync)!r}: PowerSGD "
                "needs matrices, and sync= sends flat weight deltas: use int8, bf16 or none"
            )
        # Measuring does not pay for an exchange every many steps.
        format = self._asked_format if isinstance(self._asked_format, Format) else NONE
        return Rounds(self._sync, named_parameters, replace(self._config, format=format))

    @property
    def is_late(self) -> bool:
        """Whether gradients are used one step late."""
        return self._sync == ONE_STEP_LATE

    @property
    def node(self) -> MPI.Comm:
        """This node's ranks."""
        return self._topology.node

    def named_by_any(self, indices: list[int]) -> list[int]:
        """Return the indices that any rank names, in ascending order; collective.

        Raises:
            StallError: ranks did not reach this in time, or have left; names them.
        """
        everyones = self._topology.allgather(indices, self._timeout_s, "a gradient exchange")
        return sorted(set().union(*everyones))

    def begin_step(self, optimizer: int) -> None:
        """Announce to the ranks that have joined that this one begins a step."""
        if self._begun is not None:
            self._begun.begin(optimizer)

    def refuse_join(self, refusal: str) -> None:
        """Raise an error if a rank that this one waits for was refused hvd.join().

        Args:
            refusal: the message that this rank got.

        Raises:
            UsageError: names the rank.
        """
        if self._begun is not None and (ranks := self._begun.refused_others()):
            names = name_ranks(ranks, self._topology.hosts)
            raise UsageError(f"{names} called {refusal}")

    def _summed(self, specs: list[ParameterSpec]) -> list[ParameterSpec]:
        """Describe the gradients for the arena."""
        if not self.slots:
            return specs
        return [replace(spec, dtype=dtype_of_sum(spec.dtype)) for spec in specs]

    def _make(self, layout: Layout) -> Arena:
        config = replace(self._config, format=self.compression.format)
        if self._device.type == "cuda":
            index = self._device.index
            stream = partial(current_stream, index)
            config = prepare(config, index, stream)
            return DeviceArena(config, layout, self._scale, index, stream)
        return self._on_host(
            *(config, layout, self._scale),
            between_nodes=self._between_nodes,
            in_tree_order=self.slots > 0,
        )
