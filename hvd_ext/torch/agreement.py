"""The settings that all ranks must share before they exchange gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hvd_ext.arena.layout import ParameterSpec, digest, first_difference
from hvd_ext.errors import MismatchError

if TYPE_CHECKING:
    from hvd_ext.job.topology import Topology


def agree_on_layout(
    topology: Topology,
    specs: list[ParameterSpec],
    bucket_bytes: int,
    device_type: str,
    asked: Mapping[str, str],
    timeout_s: float,
) -> None:
    """Check that all ranks lay out the same parameters in the same kind of memory.

    They must also request the same compression, and the same other settings in `asked`.

    Raises:
        StallError: ranks did not reach this in time; names them.
        MismatchError: ranks differ; names the first.
    """
    world = topology.world
    mine = (device_type, tuple(asked.items()), digest(specs, bucket_bytes))
    digests = topology.allgather(mine, timeout_s, "DistributedOptimizer()")
    if len(set(digests)) == 1:
        return
    theirs, their_bucket_bytes, their_type, their_asked = world.bcast(
        (specs, bucket_bytes, device_type, asked)
    )
    what = next((name for name in asked if asked[name] != their_asked[name]), None)
    difference = first_difference(specs, theirs)
    if difference is not None:
        sentence = f"{difference[0]}, where rank 0 has {difference[1]}"
    elif device_type != their_type:
        sentence = f"parameters on {device_type}, where rank 0 has them on {their_type}"
    elif what is not None:
        sentence = f"{what} {asked[what]!r}, where rank 0 has {their_asked[what]!r}"
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
