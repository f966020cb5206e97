"""Arguments of DistributedOptimizer that `reproducible=` excludes: refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from hvd_ext.arithmetic.summation_tree import slots_of_each_rank
from hvd_ext.compression.formats import NONE, Format
from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.schedules import EVERY_STEP, Schedule
from hvd_ext.torch import horovods
from hvd_ext.torch.own import refuse_own

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology


def passes_of_each_rank(
    slots: int,
    parameters: Iterable[torch.nn.Parameter],
    *,
    passes: int,
    format: Format | str,
    schedule: Schedule,
    sharded: bool,
) -> int:
    """The backward passes that each rank takes in a step of so many slots.

    Args:
        slots: of a step.
        parameters: of the optimizer.
        passes: `backward_passes_per_step`, 1 where the script does not say.
        format: of compression between nodes.
        schedule: when nodes exchange.
        sharded: whether the ranks of a node share the update.

    Raises:
        UsageError: these do not go together; says which, and what to do.
    """
    asked = f"reproducible={slots} (HVD_EXT_REPRODUCIBLE)"
    each = slots_of_each_rank(slots, horovods.size())
    if format is not NONE:
        name = format.name if isinstance(format, Format) else format
        raise UsageError(
            f"{asked} with compression={name!r}: compression rounds by the number of nodes: leave "
            "one of them out"
        )
    if schedule != EVERY_STEP:
        raise UsageError(
            f"{asked} with sync={str(schedule)!r}: nodes must exchange in every step: leave one "
            "of them out"
        )
    if passes not in (1, each):
        raise UsageError(
            f"{asked} with backward_passes_per_step={passes}: each of {horovods.size()} ranks "
            f"takes {each} of {slots} slots: give {each}, or leave it out"
        )
    held = list(parameters)
    refuse_own(held, asked, "leave it out")
    if sharded and (halves := [p.dtype for p in held if p.dtype.itemsize == 2]):
        raise UsageError(
            f"{asked} with sharded=True and parameters of {halves[0]}: the ranks would share sums "
            "in float32: leave sharded out"
        )
    return each


def require_consecutive_ranks(topology: Topology) -> None:
    """See that the ranks of a node are a subtree of the sum; collective.

    Raises:
        HvdExtError: on every rank, if the launcher has dealt them otherwise.
    """
    place = topology.cross.rank * topology.node.size + topology.node.rank
    if not topology.homogeneous or not all(topology.world.allgather(place == topology.world.rank)):
        raise HvdExtError(
            "reproducible= needs consecutive ranks on each node, and as many on one as on another: "
            "start them by slot (mpirun --map-by core, srun --distribution=block)"
        )


def explain(slots: int, each: int) -> str:
    """Say what is guaranteed.

    Args:
        slots: of a step.
        each: on each rank.
    """
    return (
        f"reproducible: {slots} slots, {each} on each rank, summed by one tree in float32: the "
        "same bits on any number of ranks"
    )


def not_served(slots: int, reason: str) -> UsageError:
    """The error where the arena cannot be used."""
    return UsageError(f"reproducible={slots} (HVD_EXT_REPRODUCIBLE): not served: {reason}")


def dtype_of_sum(dtype: str) -> str:
    """In which a gradient is summed: no rounding to 16 bits before the whole sum is there."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype
