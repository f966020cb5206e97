"""Whether this MPI takes GPU memory, for `hvd-launch doctor`: a separate job, as it may crash.

Each rank prints a line of JSON: its rank; reason, why not, or "" if sums were right; and us, the
times of the longest message by carrier. On one node every rank pretends to be a node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from hvd_ext import variables
from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda.carriers import candidates, measure
from hvd_ext.arena.cuda.measure import device_of
from hvd_ext.errors import HvdExtError
from hvd_ext.job.topology import Topology, discover
from hvd_ext.shm.regions import on_every_rank
from hvd_ext.units import KIB, MIB

SIZES, ROUNDS = (8 * KIB, MIB, 64 * MIB), 3


def main() -> None:
    """Give device memory to MPI; collective."""
    from mpi4py import MPI

    timeout_s = variables.STALL_TIMEOUT_S.read()
    found = discover(MPI.COMM_WORLD, timeout_s)
    topology = _apart(found) if found.one_node else found
    reason = ""
    us: Mapping[str, float] = {}
    try:
        device, stream = on_every_rank(topology, lambda: device_of(found.node.rank))
        given = ArenaConfig(topology, BUILT_IN, timeout_s), device, lambda: stream
        names = candidates(topology, device, timeout_s, with_mpi=True)
        us = measure(*given, names, SIZES, ROUNDS).measured_us[-1][1]
    except HvdExtError as error:
        reason = str(error)
    print(json.dumps({"rank": found.world.rank, "reason": reason, "us": dict(us)}), flush=True)


def _apart(found: Topology) -> Topology:
    world = found.world
    hosts = tuple(f"node{rank}" for rank in range(world.size))
    node = world.Split(world.rank, world.rank)
    return Topology(world.Dup(), node, world.Dup(), hosts, homogeneous=True)


if __name__ == "__main__":
    main()
