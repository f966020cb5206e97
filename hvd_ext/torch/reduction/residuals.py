"""Residuals: the parts that compression has rounded away and not sent yet, by parameter.

They are spread over the nodes, and within a node over the ranks' shards. Only their sum over the
nodes matters for later steps, so the sum is gathered and saved. It can be used on any number of
nodes, and each node then sends an equal part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from hvd_ext.torch.parameters import in_memory_order, placed_as

if TYPE_CHECKING:
    from mpi4py import MPI

    from hvd_ext.torch.reduction.placed import PlacedArena

Residuals = dict[torch.nn.Parameter, torch.Tensor]


def drain(placed: Sequence[PlacedArena], node: MPI.Comm) -> Residuals:
    """Gather all residuals; collective over all ranks.

    Every node continues with an equal part of the sum.

    Args:
        placed: arenas between two rounds.
        node: the ranks that have the other shards.

    Returns:
        The sum over the nodes for each parameter whose format has residuals; the same on every
        rank, and of the parameter's shape.
    """
    found: Residuals = {}
    for each in placed:
        shards = node.allgather(each.arena.shards)
        for index, total in enumerate(each.arena.drain()):
            if total is None:
                continue
            bucket = each.arena.layout.buckets[index]
            whole = np.empty(bucket.count, np.float32)
            parts = [of[index] for of in shards]
            begins = [(begin - bucket.offset_bytes) // 4 for begin, _ in parts]
            counts = [(end - begin) // 4 for begin, end in parts]
            node.Allgatherv(total, [whole, counts, begins, None])
            for span in bucket.spans:
                if span.columns:
                    parameter = each.slots[span.parameter].parameter
                    at = (span.offset_bytes - bucket.offset_bytes) // 4
                    flat = torch.from_numpy(whole[at : at + span.count].copy())
                    found[parameter] = placed_as(parameter, flat)
    return found


def keep(
    placed: Sequence[PlacedArena], residuals: Mapping[torch.nn.Parameter, torch.Tensor]
) -> None:
    """Resume from the result of `drain`, of this job or another; missing values are 0.

    Args:
        placed: arenas between two rounds.
        residuals: the same on every rank.
    """
    for each in placed:
        of_parameters = {
            index: in_memory_order(slot.parameter, residuals[slot.parameter]).numpy()
            for index, slot in enumerate(each.slots)
            if slot.parameter in residuals
        }
        for index in range(len(each.arena.layout.buckets)):
            each.arena.keep(index, of_parameters)
