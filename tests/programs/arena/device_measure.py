"""`hvd_ext.arena.cuda.measure` on the stand-ins for CuPy and NCCL.

HVD_EXT_TEST_MPI: one of MISHAPS, on nodes of one rank each.
"""

from __future__ import annotations

import os

from hvd_ext.arena.cuda import measure, nccl
from hvd_ext.arena.cuda.by_mpi import DeviceShard
from hvd_ext.cli import run
from testbed import cuda_stand_in
from testbed.cuda_stand_in import nccl as stand_in
from tests.support.arena.mpi_mishaps import MISHAPS
from tests.support.arena.pretended_nodes import pretend

cuda_stand_in.install()
nccl._load = lambda: stand_in
if how := os.environ.get("HVD_EXT_TEST_MPI"):
    measure.discover = lambda world, timeout_s: pretend(world, 1)
    DeviceShard.outgoing = MISHAPS[how]
run(measure.main, "hvd_ext.arena.cuda.measure")
