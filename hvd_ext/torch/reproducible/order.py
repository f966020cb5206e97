"""The order in which a reproducible sum adds: its needs, and its description."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_ext.errors import HvdExtError
from hvd_ext.units import counted

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology


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
        f"reproducible: {counted(slots, 'slot')}, {each} on each rank, summed by one tree in "
        "float32: the same bits on any number of ranks"
    )


def dtype_of_sum(dtype: str) -> str:
    """In which a gradient is summed: no rounding to 16 bits before the whole sum is there."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype
