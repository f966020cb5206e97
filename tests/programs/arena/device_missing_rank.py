"""Rounds of the device arena on the stand-in for CuPy, in which the last rank is missing.

Argument: "late", it comes to the second round far too late; "ended", it is killed before.
The others print what they are told, and end.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from mpi4py import MPI

from hvd_ext.errors import StallError
from hvd_ext.job.topology import discover
from tests.support.arena.device_rounds import Device, layout_of, one_round

TIMEOUT_S = 2.0

topology = discover(MPI.COMM_WORLD, 30)
device = Device(topology)
arena = device.arena(layout_of([1000, 10]), timeout_s=TIMEOUT_S)
for number in range(3):
    if number == 1 and topology.world.rank == topology.world.size - 1:
        if sys.argv[1] == "ended":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(100)
    try:
        assert one_round(device, arena, number)
    except StallError as error:
        print(error, flush=True)
        os._exit(1)
print("all rounds done", flush=True)
