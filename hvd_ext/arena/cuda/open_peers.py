"""Whether ranks of a node can open each other's GPU memory, for `hvd-launch doctor`.

Each rank prints a line of JSON: its rank, its GPU, and the reason why it could not ("" if it
could).
"""

from __future__ import annotations

import json

from hvd_ext import variables
from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.config import ArenaConfig
from hvd_ext.arena.cuda.arena import DeviceArena
from hvd_ext.arena.cuda.measure import device_of
from hvd_ext.arena.layout import ParameterSpec, layout_by_size
from hvd_ext.job.topology import discover
from hvd_ext.shm.regions import WindowError, on_every_rank


def main() -> None:
    """Make an arena and exchange zeros in it; collective."""
    from mpi4py import MPI

    world, timeout_s, reason, device = MPI.COMM_WORLD, variables.STALL_TIMEOUT_S.read(), "", -1
    topology = discover(world, timeout_s)
    config = ArenaConfig(topology, BUILT_IN, timeout_s)
    layout = layout_by_size([ParameterSpec("a", (64,), (1,), "float32")], 1 << 10)
    try:
        device, stream = on_every_rank(topology, lambda: device_of(topology.node.rank))
        arena = DeviceArena(config, layout, 1.0, device, lambda: stream)
        arena.reduce(0)
        arena.finish()
        arena.synchronize()
        arena.close()
    except WindowError as error:
        reason = str(error)
    print(json.dumps({"rank": world.rank, "gpu": device, "reason": reason}), flush=True)


if __name__ == "__main__":
    main()
