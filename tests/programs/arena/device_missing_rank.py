"""Rounds of the device arena on the stand-in for CuPy, in which the last rank is missing.

Arguments: "late", it comes to the second round far too late; "ended", it is killed before. A
carrier: every rank is a node.
The others print what they are told, and end.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from mpi4py import MPI

from hvd_ext.allreduce.table import BUILT_IN
from hvd_ext.arena.cuda import nccl
from hvd_ext.arena.cuda.arena import carried_by
from hvd_ext.errors import StallError
from hvd_ext.job.topology import discover
from testbed.cuda_stand_in import nccl as stand_in
from tests.support.arena.device_rounds import Device, layout_of, one_round
from tests.support.arena.pretended_nodes import pretend

TIMEOUT_S = 2.0

how, *carriers = sys.argv[1:]
nccl._load = lambda: stand_in
topology = pretend(MPI.COMM_WORLD, 1) if carriers else discover(MPI.COMM_WORLD, 30)
device = Device(topology)
table = carried_by(*carriers) if carriers else BUILT_IN
arena = device.arena(layout_of([1000, 10]), timeout_s=TIMEOUT_S, table=table)
assert not carriers or set(arena.carriers) == set(carriers), arena.carriers
for number in range(3):
    if number == 1 and topology.world.rank == topology.world.size - 1:
        if how == "ended":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(100)
    try:
        assert one_round(device, arena, number)
    except StallError as error:
        print(error, flush=True)
        os._exit(1)
print("all rounds done", flush=True)
