"""The order of a reproducible sum: its requirements, and its description."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.errors import HvdExtError
from hvd_ext.units import counted

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology


def require_consecutive_ranks(topology: Topology) -> None:
    """Check that the ranks of a node are a subtree of the sum; collective.

    Raises:
        HvdExtError: on every rank, if the launcher has placed them differently.
    """
    place = topology.cross.rank * topology.node.size + topology.node.rank
    if not topology.homogeneous or not all(topology.world.allgather(place == topology.world.rank)):
        raise HvdExtError(
            "reproducible= needs consecutive ranks on each node, and as many on one as on another: "
            "start them by slot (mpirun --map-by core, srun --distribution=block)"
        )


def explain(slots: int, each: int) -> str:
    """Describe the guarantee.

    Args:
        slots: number of slots of a step.
        each: number of slots on each rank.
    """
    return (
        f"reproducible: {counted(slots, 'slot')}, {each} on each rank, summed by one tree in "
        "float32: the same bits on any number of ranks"
    )


def dtype_of_sum(dtype: str) -> str:
    """Return the dtype of a gradient's sum: no rounding to 16 bits before the sum is complete."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype
