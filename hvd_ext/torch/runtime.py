"""What a process's optimizers share: topology, table, and the agreement of all ranks."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import horovod.torch as horovod
import numpy as np
import torch

from hvd_ext import settings
from hvd_ext.allreduce.table import BUILT_IN, Table, load
from hvd_ext.arena.bucket_cost import measure_bucket
from hvd_ext.arena.buckets import choose_buckets
from hvd_ext.arena.cuda.arena import BUCKET_BYTES, DeviceArena
from hvd_ext.arena.host import HostArena
from hvd_ext.arena.layout import (
    Layout,
    ParameterSpec,
    digest,
    first_difference,
    layout_buckets,
    layout_by_size,
)
from hvd_ext.errors import HvdExtError, MismatchError
from hvd_ext.job.monitored_allgather import monitored_allgather
from hvd_ext.job.topology import Topology, discover
from hvd_ext.shm.regions import WindowError
from hvd_ext.torch.background import yield_to_training
from hvd_ext.torch.reducer import Arena, Gradients, NamedParameters
from hvd_ext.units import MIB, format_bytes

if TYPE_CHECKING:
    from mpi4py import MPI

log = logging.getLogger("hvd_ext")
# Until it was measured when gradients are ready.
_FIRST_BUCKET_BYTES = 4 * MIB


def unserved() -> str | None:
    """Say why this job's communication cannot be hvd_ext's, or None if it can."""
    if horovod.size() == 1:
        return None
    if not horovod.mpi_enabled():
        return "Horovod runs on Gloo, not MPI"
    from mpi4py import MPI

    if not MPI.Is_initialized():
        return "MPI is not running"
    if MPI.Is_finalized():
        raise HvdExtError("MPI has ended, as another rank has: look for its last lines above")
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return "MPI runs without MPI_THREAD_MULTIPLE (HOROVOD_MPI_THREADS_DISABLE?)"
    if MPI.COMM_WORLD.size != horovod.size():
        return "Horovod was started on some of MPI's ranks only"
    return None


class Arenas:
    """Makes an optimizer's arenas, the same on every rank."""

    def __init__(self, op: Any, device: torch.device) -> None:
        """Read what the user set, and wait for all ranks; collective.

        Args:
            op: Horovod's Average or Sum.
            device: where gradients are.

        Raises:
            StallError: ranks did not come.
        """
        self._device = device
        self._bucket_bytes = settings.bucket_bytes()
        self._timeout_s = settings.stall_timeout_s()
        self._topology = the_topology(self._timeout_s)
        self._table = read_table(self._topology.world)
        self._scale = 1.0 / self._topology.world.size if op == horovod.Average else 1.0

    @property
    def may_fuse(self) -> bool:
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
        _agree(self._topology, specs, most, self._device.type, self._timeout_s)
        if not self._topology.homogeneous:
            raise WindowError("nodes have different numbers of ranks")
        reason = f"at most {format_bytes(most)} a bucket, last parameter first"
        if self._bucket_bytes is not None:
            reason = "as HVD_EXT_BUCKET_BYTES says, last parameter first"
        elif on_host:
            reason = f"not measured yet: {reason}"
        return self._make(layout_by_size(specs, most)), reason

    def fused(self, specs: list[ParameterSpec], ready_s: list[float]) -> tuple[Arena, str]:
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
        return HostArena(self._topology, layout, self._scale, self._table, self._timeout_s)


def add(gradients: Gradients, named_parameters: NamedParameters) -> str | None:
    """Add parameters to an optimizer's gradients; collective.

    Returns:
        None, or why no arena could be made on some rank: the same on every rank.

    Raises:
        StallError: ranks did not come.
        MismatchError: ranks differ in their parameters.
    """
    try:
        gradients.add(named_parameters)
    except WindowError as error:
        return str(error)
    yield_to_training()
    return None


@functools.cache
def the_topology(timeout_s: float) -> Topology:
    """This job's nodes and ranks; collective the first time."""
    from mpi4py import MPI

    return discover(MPI.COMM_WORLD, timeout_s)


def read_table(world: MPI.Comm) -> Table:
    """The table that rank 0 reads, the same on every rank; collective."""
    table: Table | None = None
    problem: HvdExtError | None = None
    if world.rank == 0:
        path = settings.table_path()
        try:
            table = load(Path(path)) if path else BUILT_IN
        except HvdExtError as error:
            problem = error
    table, problem = world.bcast((table, problem))
    if problem is not None:
        raise problem
    assert table is not None
    return table


def _agree(
    topology: Topology,
    specs: list[ParameterSpec],
    bucket_bytes: int,
    device_type: str,
    timeout_s: float,
) -> None:
    """Have all ranks build the same plan for the same kind of memory, or none."""
    world = topology.world
    mine = (device_type, digest(specs, bucket_bytes))
    digests = monitored_allgather(world, mine, timeout_s, "DistributedOptimizer()", topology.hosts)
    if len(set(digests)) == 1:
        return
    theirs, their_bucket_bytes, their_type = world.bcast((specs, bucket_bytes, device_type))
    difference = first_difference(specs, theirs)
    if difference is not None:
        sentence = f"{difference[0]}, where rank 0 has {difference[1]}"
    elif device_type != their_type:
        sentence = f"parameters on {device_type}, where rank 0 has them on {their_type}"
    elif bucket_bytes != their_bucket_bytes:
        sentence = f"HVD_EXT_BUCKET_BYTES={bucket_bytes}, where rank 0 has {their_bucket_bytes}"
    else:
        sentence = ""
    first = next(
        f"{topology.name(rank)} has {text}"
        for rank, text in enumerate(world.allgather(sentence))
        if text
    )
    raise MismatchError(f"ranks have different models: {first}; build the same one on every rank")
