"""Registration of the backend with torch.distributed, and the making of its groups."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from hvd_ext.c10d.backend.group import Group
from hvd_ext.c10d.backend.messages import Messages
from hvd_ext.c10d.backend.messages_by_gloo import GlooMessages
from hvd_ext.c10d.backend.reported import Reported
from hvd_ext.c10d.collectives import SETTING, describe
from hvd_ext.c10d.lifecycle import note
from hvd_ext.c10d.ranks import shorter_limit, topology_among
from hvd_ext.c10d.torch_internals import compares_collectives
from hvd_ext.c10d.watch import begin_without_mpi
from hvd_ext.c10d.without_mpi import by_mpi
from hvd_ext.engine.one_node import OneNode
from hvd_ext.engine.several_nodes import SeveralNodes
from hvd_ext.errors import UsageError
from hvd_ext.shm.regions import WindowError

if TYPE_CHECKING:
    from hvd_ext.engine.carrier import Carrier
    from hvd_ext.job.topology import Topology

NAME = "hvd_ext"
log = logging.getLogger("hvd_ext")
# PyTorch's wrapper keeps the half of a group that is in C++, and calls the half in Python.
_compared: set[Group] = set()


class _Compared(Group):
    def close(self) -> None:
        super().close()
        _compared.discard(self)


def register() -> None:
    """Register the backend for `init_process_group("hvd_ext")`; entry point of torch >= 2.14."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


def create(options: Any, backend_options: object = None) -> Group:
    """Make a process group; collective over its ranks.

    Args:
        options: torch's options of the group.
        backend_options: ignored.

    Raises:
        UsageError: MPI did not start these ranks, and they cannot share memory; or it did, and one
            of them is missing.
        StallError: ranks did not reach this in time; names them.
    """
    rank, ranks = options.group_rank, tuple(options.global_ranks_in_group)
    timeout_s = options.timeout.total_seconds()
    limit = shorter_limit(timeout_s)
    if ranks:
        size, occasion = dist.get_world_size(), "new_group()"
    else:
        size, occasion = options.group_size, "init_process_group()"
        ranks = tuple(range(size))
    topology = topology_among(ranks, ranks[rank], size, occasion, limit, options.store)
    # MPI's own collectives, which follow, would hang.
    topology.allgather(None, limit[0], occasion, limit[1])
    # With some versions of torch, its collectives do not pass the dispatcher.
    begin_without_mpi(ranks[rank], size, NAME)
    carrier = _carrier(topology, timeout_s)
    point_to_point = Messages if by_mpi(topology) else GlooMessages
    messages = point_to_point(topology, timeout_s)
    reported = Reported(carrier)
    compares = compares_collectives()
    group = (_Compared if compares else Group)(topology, reported, messages, timeout_s)
    note(group)
    if compares:
        _compared.add(group)
    return group


def _carrier(topology: Topology, timeout_s: float) -> Carrier:
    """Make a carrier: the node's memory if ranks can share it, otherwise messages."""
    if topology.one_node:
        try:
            return OneNode(topology, timeout_s, describe, SETTING)
        except WindowError as error:
            if not by_mpi(topology):
                raise UsageError(
                    f"backend hvd_ext without MPI: {error}; start the script with mpirun, srun or "
                    "hvd-launch run, or use the backend gloo"
                ) from error
            if topology.world.rank == 0:
                log.warning("hvd_ext: a process group falls back to MPI's messages: %s", error)
    return SeveralNodes(topology, timeout_s, describe, SETTING)
