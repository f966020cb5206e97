"""On pretended nodes, the last rank never exchanges. Argument: ranks per node."""

from __future__ import annotations

import sys
import time

from mpi4py import MPI

from tests.support.arena.pretended_nodes import make_arena, pretend, reduce_and_check

topology = pretend(MPI.COMM_WORLD, int(sys.argv[1]))
arena = make_arena(topology, "native", timeout_s=3)
if topology.world.rank == topology.world.size - 1:
    time.sleep(300)
reduce_and_check(arena, topology, seed=0)
